"""A start that reads the log with the compiled core leaves the same files behind as one in Python, byte by byte."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.disks import NoFlushDisk
from tests.store.recovery import damaged_stores as stores
from tests.store.recovery.damaged_stores import LOG_DAMAGES, SPOILT, Written, config_of

import cometmq.store.index.index_file as index_file
import cometmq.store.log.plain_records as plain_records
from cometmq.core import CORE
from cometmq.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from cometmq.store.log.plain_records import PlainRecords, PlainRun
from cometmq.store.message_store import MessageStore
from cometmq.store.write_batch import NewRecord
from cometmq.testing import VirtualClock

pytestmark = pytest.mark.skipif(CORE is None, reason="the compiled core is not installed")


def opened(
    root: Path, core: Any, most_passed: int = 0, **changes: Any
) -> tuple[list[str], dict[str, bytes], dict[tuple[str, int], int]]:
    """Open a store and stop it: what was found, all files, the end of each queue.

    ``most_passed``: after a look that finds nothing the core passes over so many records at most.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_records, "CORE", core)
        patch.setattr(plain_records, "_MOST_PASSED", most_passed)
        patch.setattr(
            index_file, "make_block", index_file.make_block_in_core if core else index_file.make_block_in_python
        )
        store = MessageStore.open(config_of(root, **changes), clock=VirtualClock(), disk=NoFlushDisk())
        ends = {
            (topic, number): queue.max_offset() for topic, of in store.queues().items() for number, queue in of.items()
        }
        findings = store.findings
        store.close_now()
    (root / "comet" / "queueFiles.json").unlink()  # inodes and times are never the same
    files = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    return findings, files, ends


def assert_equal(root: Path, most_passed: int = 0, **changes: Any) -> None:
    """Open two copies of a store, with and without the core."""
    (root / "comet" / "queueFiles.json").unlink(missing_ok=True)  # no copy has the files that it knows
    other = root.with_name(root.name + "-python")
    shutil.copytree(root, other)
    of_core, of_python = opened(root, CORE, most_passed, **changes), opened(other, None, **changes)
    assert of_core[0] == of_python[0]
    assert of_core[2] == of_python[2]
    assert of_core[1].keys() == of_python[1].keys()
    for name, content in of_core[1].items():
        assert content == of_python[1][name], name
    stores.scrub(root)
    stores.scrub(other)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of runs that the core has read, of units, and of records with keys."""
    counts: Counter[str] = Counter()
    run = PlainRecords.run

    def counted(records: PlainRecords, *where: Any) -> PlainRun | None:
        found = run(records, *where)
        if found is not None:
            counts["runs"] += 1
            counts["units"] += sum(part.end - part.first for part in found.queues)
            counts["keys"] += found.indexed
        return found

    monkeypatch.setattr(PlainRecords, "run", counted)
    return counts


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_sound_log_is_read_as_python_reads_it(spoilt: str, written: Written, tmp_path: Path) -> None:
    root = written.copy(tmp_path / "case")
    changes: dict[str, Any] = stores.settings(spoilt)
    SPOILT[spoilt](root)
    assert_equal(root, **changes)


def test_the_core_reads_nearly_all_of_a_sound_log(stopped: Written, tmp_path: Path, taken: Counter[str]) -> None:
    for spoilt in ("index gone", "queues gone"):
        root = stopped.copy(tmp_path / spoilt)
        SPOILT[spoilt](root)
        opened(root, CORE)
    assert taken["units"] >= len(stopped.messages) - 2 * len(stores.QUEUES)
    assert taken["keys"] >= len(stopped.messages) - len(stores.QUEUES)


@pytest.mark.parametrize("spoilt", ["nothing", "index gone", "queues gone", "queues zeroed", "all gone", "both gone"])
def test_a_damaged_log_is_read_as_python_reads_it(spoilt: str, written: Written, tmp_path: Path) -> None:
    """One in four of all damages at all places."""
    spoil = [SPOILT[name] for name in SPOILT if name == spoilt] or [SPOILT["index gone"], SPOILT["queues gone"]]
    cases = [(name, place) for name in LOG_DAMAGES for place in stores.places(written.messages).items()]
    for number, (name, (place, message)) in enumerate(cases[sum(map(ord, spoilt)) % 4 :: 4]):
        root = written.copy(tmp_path / f"{number}")
        LOG_DAMAGES[name](root, message)
        for each in spoil:
            each(root)
        try:
            assert_equal(root)
        except AssertionError as error:
            raise AssertionError(f"{name} of {place}: {error}") from error


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    spoilt=st.sampled_from(["nothing", "index gone", "queues gone", "a queue's tail garbage"]),
    damages=st.lists(
        st.tuples(st.integers(0, 2**31), st.one_of(st.binary(min_size=1, max_size=20), st.just(bytes(700)))),
        min_size=1,
        max_size=4,
    ),
)
def test_any_bytes_in_the_log_are_read_as_python_reads_them(
    spoilt: str, damages: list[tuple[int, bytes]], stopped: Written, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = stopped.copy(tmp_path_factory.mktemp("any") / "store")
    for at, data in damages:
        stores.overwrite(root, at % stopped.end, data)
    SPOILT[spoilt](root)
    assert_equal(root)


PROPERTIES = (
    b"",
    b"KEYS\x01a b  c\x02TAGS\x01t\x02UNIQ_KEY\x01u\x02",
    b"KEYS\x01 \x02KEYS\x01a\x02KEYS\x01  \x02TAGS\x01t\x02TAGS\x01\x02UNIQ_KEY\x01",
    "KEYS\x01中文 é\x02TAGS\x01中\x02UNIQ_KEY\x01😀".encode(),
    b"KEYS\x01\xff\xfe\x02TAGS\x01\xff",
    b"KEYS\x02TAGS\x02UNIQ_KEY\x02\x02\x01x\x02NOKEYS\x01n\x02KEYS\x01polygenelubricants",
    b"KEYS\x01" + b" ".join(b"k%d" % number for number in range(40)),
    b"DELAY\x013\x02KEYS\x01d",
    b"ends in zeros\x00\x00",
)
KINDS = (0, 0, 0, TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


@pytest.mark.parametrize("spoilt", ["index gone", "queues gone", "position gone", "all gone"])
@pytest.mark.parametrize("seed", range(4))
def test_messages_of_all_kinds_are_read_as_python_reads_them(spoilt: str, seed: int, tmp_path: Path) -> None:
    """Transactions, IPv6, delayed messages, a topic that was made anew, records larger than a look at the log."""
    dice = random.Random(seed)
    root = tmp_path / "store"
    large = {"mapped_file_size_commit_log": 1 << 16, "max_index_num": 5000}
    store = MessageStore.open(config_of(root, **large), clock=VirtualClock(), disk=NoFlushDisk())
    hosts = (bytes(8), bytes(20))
    for number in range(300):
        topic, queue_id = dice.choice([("A", 0), ("A", 1), ("B", 0), ("SCHEDULE_TOPIC_XXXX", 2), (f"T{number}", 7)])
        body = dice.randbytes(dice.choice([0, 10, 300, 9000]))
        store.batch.put(
            store.queue(topic, queue_id),
            NewRecord(
                body,
                dice.choice(PROPERTIES),
                0,
                dice.choice(KINDS),
                1,
                dice.choice(hosts),
                dice.choice(hosts),
                0,
                0,
                0,
                ["k"],
            ),
        )
        if not dice.randrange(5):
            store.batch.commit()
        if number == 150 and seed % 2:
            store.batch.commit()
            store.delete_topic("B")
    store.batch.commit()
    store.close_now()
    SPOILT[spoilt](root)
    assert_equal(root, (0, 63)[seed % 2], **large)
