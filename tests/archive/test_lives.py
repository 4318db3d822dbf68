"""An archive in random lives keeps its promises, and the lives find mistakes that are planted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.archive.lives import kinds, live
from tests.archive.memory import MemoryStorage

from cometmq.archive import chain, changes, files, leftovers
from cometmq.archive.chain import CommitChain
from cometmq.archive.commits import APPENDED, COMPACTED, OPENED
from cometmq.archive.contents import Contents
from cometmq.archive.errors import ArchiveError
from cometmq.storage import ObjectExistsError


@pytest.fixture(autouse=True)
def _stepwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are frequent, and each process has one request at a time, so that a seed decides on all."""
    monkeypatch.setattr(chain, "CHECKPOINT_EVERY", 4)
    monkeypatch.setattr(chain, "REQUESTS_AT_ONCE", 1)


SEEDS = 150
PLANTED_SEEDS = 400


def test_no_life_loses_or_doubles_a_message() -> None:
    seen: dict[str, int] = {}
    for seed in range(SEEDS):
        for kind in kinds(live(seed)):
            seen[kind] = seen.get(kind, 0) + 1
    assert seen[OPENED] > SEEDS
    assert seen[APPENDED] > 2 * SEEDS
    assert seen[COMPACTED] > SEEDS / 10


def _nobody_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommitChain, "_demand_owner", lambda *_: None)


def _commits_replace_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def store(self: MemoryStorage, key: str, content: bytes) -> bool:
        self.objects[key] = (content, 0)
        return True

    monkeypatch.setattr(MemoryStorage, "store", store)


def _a_taken_number_counts_as_created(monkeypatch: pytest.MonkeyPatch) -> None:
    create = MemoryStorage.create

    def careless(self: MemoryStorage, key: str, content: bytes) -> None:
        try:
            create(self, key, content)
        except ObjectExistsError:
            return

    monkeypatch.setattr(MemoryStorage, "create", careless)


def _a_committed_batch_is_not_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "holds", lambda *_: False)
    monkeypatch.setattr("tests.archive.lives.holds", lambda *_: False)
    monkeypatch.setattr(changes, "advance_totals", _without_a_check_of_overlaps)


def _without_a_check_of_overlaps(totals: Any, covered: Any, _files: Any) -> Any:
    from cometmq.archive.commits import QueueTotals

    found = {of.queue: of for of in totals}
    found |= {
        part.queue: QueueTotals(part.topic, part.broker, part.queue_id, 0, part.end, part.end) for part in covered
    }
    return list(found.values()), []


def _a_checkpoint_forgets_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Contents.checkpoint

    def forgetful(self: Contents) -> Any:
        made = whole(self)
        made.batches.clear()
        return made

    monkeypatch.setattr(Contents, "checkpoint", forgetful)


def _commits_are_read_in_the_order_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "sorted", lambda found: list(found), raising=False)


def _files_of_the_newest_writer_are_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    real = files.epoch_of
    monkeypatch.setattr(leftovers, "epoch_of", lambda path: None if (of := real(path)) is None else of - 1)


@pytest.mark.parametrize(
    "mistake",
    [
        _nobody_is_refused,
        _commits_replace_each_other,
        _a_taken_number_counts_as_created,
        _a_committed_batch_is_not_recognised,
        _a_checkpoint_forgets_batches,
        _commits_are_read_in_the_order_of_the_list,
        _files_of_the_newest_writer_are_swept,
    ],
)
def test_a_planted_mistake_is_found(mistake: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    for seed in range(PLANTED_SEEDS):
        try:
            live(seed)
        except (AssertionError, ArchiveError):
            return
    pytest.fail("no life has found the mistake")
