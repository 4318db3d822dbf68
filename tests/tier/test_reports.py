"""The reports of archived queues to the broker: many queues in parts, later only those that changed, and what fails."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from pathlib import Path

import pytest
from tests.tier.archives import QUEUE, ask, make_records, open_reader, write_archive
from tests.tier.test_process import Reader, started

from cometmq.archive import ArchiveError
from cometmq.storage import open_storage
from cometmq.tier import process as processes
from cometmq.tier.catalog import Catalog
from cometmq.tier.frames import LENGTHS, Extent, Extents, Unreadable, decode_message
from cometmq.tier.limits import EXTENTS_IN_FRAME

MANY = 2 * EXTENTS_IN_FRAME + 1
KNOWN = {("orders", number): Extent("orders", number, 0, 10, 0) for number in range(MANY)}


def reported(extents: dict[tuple[str, int], Extent], before: dict[tuple[str, int], Extent] | None) -> list[Extents]:
    """The frames that a broker gets."""
    here, there = socket.socketpair()
    with here, there:
        sending = threading.Thread(target=processes.ReaderProcess(there)._report, args=(extents, before))
        sending.start()
        incoming = here.makefile("rb")
        frames: list[Extents] = []
        while not frames or not frames[-1].is_last:
            header, _ = LENGTHS.unpack(incoming.read(LENGTHS.size))
            message = decode_message(incoming.read(header))
            assert isinstance(message, Extents)
            frames.append(message)
        sending.join()
        return frames


def test_many_queues_are_reported_in_parts() -> None:
    frames = reported(KNOWN, None)
    assert [len(frame.queues) for frame in frames] == [EXTENTS_IN_FRAME, EXTENTS_IN_FRAME, 1]
    assert [(frame.is_whole, frame.is_last) for frame in frames] == [(True, False), (True, False), (True, True)]
    assert [extent for frame in frames for extent in frame.queues] == list(KNOWN.values())


def test_later_only_changed_queues_are_reported() -> None:
    new = Extent("orders", 3, 0, 20, 0)
    later = {**KNOWN, ("orders", 3): new}
    del later["orders", 5]
    (frame,) = reported(later, KNOWN)
    assert (frame.queues, frame.is_whole) == ([new, Extent("orders", 5, 0, 0, 0)], False)


def test_an_archive_without_queues_of_this_broker_is_reported_too() -> None:
    assert reported({}, None) == [Extents([], is_whole=True, is_last=True)]


def next_message(reader: Reader, kind: type) -> Extents | Unreadable:
    while not isinstance(message := reader.receive()[0], kind):
        pass
    assert isinstance(message, Extents | Unreadable)
    return message


def test_commits_that_cannot_be_read_are_reported_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(tmp_path, [make_records(10)])
    commit = max(tmp_path.glob("_commits/*.json"))
    content = commit.read_text()
    commit.write_text('{"x": ' + "[" * 200_000)
    with started(str(tmp_path)) as reader:
        message = next_message(reader, Unreadable)
        assert isinstance(message, Unreadable)
        assert f"{commit.name} is damaged" in message.reason
        commit.write_text(content)
        found = next_message(reader, Extents)
        assert isinstance(found, Extents)
        assert found.queues[0].end == 10


def test_an_archive_that_was_replaced_by_a_shorter_one_is_read_from_its_beginning(tmp_path: Path) -> None:
    lake, other = tmp_path / "lake", tmp_path / "other"
    write_archive(lake, [make_records(10), make_records(10, first=10)])
    write_archive(other, [make_records(5)])
    catalog = Catalog(open_storage(lake), QUEUE.broker)
    catalog.refresh()
    shutil.rmtree(lake)
    other.rename(lake)
    with pytest.raises(ArchiveError, match="is missing"):
        catalog.refresh()
    assert catalog.refresh()
    assert [extent.end for extent in catalog.extents().values()] == [5]


def test_a_gap_is_reported_only_after_the_newest_commits_were_read(tmp_path: Path) -> None:
    """Messages may be archived and deleted from the store right before a consumer asks for them."""
    write_archive(tmp_path, [make_records(10)])
    reader = open_reader(tmp_path)
    for end in (20, 30, 40):
        write_archive(tmp_path, [make_records(10, first=end - 10)], begin=end // 10)
        assert reader.read(ask(end - 10, count=2))[0].next_offset == end - 8


def test_a_file_outside_the_archive_is_not_read(tmp_path: Path) -> None:
    write_archive(tmp_path / "secrets", [make_records(10)])
    write_archive(tmp_path / "lake", [make_records(10)])
    (secret,) = (tmp_path / "secrets").glob("topic=*/*/*.parquet")
    commit = max((tmp_path / "lake").glob("_commits/*.json"))
    content = json.loads(commit.read_text())
    content["files"][0]["path"] = f"../secrets/{secret.relative_to(tmp_path / 'secrets')}"
    commit.write_text(json.dumps(content))
    with pytest.raises(ArchiveError, match="adds a file outside of it"):
        open_reader(tmp_path / "lake").read(ask(0))
