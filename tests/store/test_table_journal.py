"""The journals of a table: what was appended is read again after any crash, for the file that they go on from."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from tests.broker.disks import FailingDisk

from cometmq.checksum import crc32
from cometmq.store.disk import Disk
from cometmq.store.table_journal import Base, TableJournal

WHOLE = b'{"table":{"a":1}}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table's file, whole."""
    path = tmp_path / "config" / "things.json"
    path.parent.mkdir()
    path.write_bytes(WHOLE)
    return path


def opened(path: Path, disk: Disk | None = None) -> TableJournal:
    journal = TableJournal(path, disk or Disk())
    journal.load(path.read_bytes())
    return journal


def row(name: str, value: Any) -> bytes:
    return json.dumps({"table": {name: value}}).encode()


def read(path: Path, depth: int = 2) -> dict[str, Any]:
    """The rows as a start finds them."""
    text = path.read_bytes()
    table: dict[str, Any] = json.loads(text)
    TableJournal(path, Disk()).merge_into(table, text, depth)
    rows: dict[str, Any] = table["table"]
    return rows


def test_changes_are_merged_in_their_order(path: Path) -> None:
    journal = opened(path)
    journal.append([row("b", {"x": 1, "y": 2}), row("c", 3)])
    journal.append([row("b", {"x": 2}), row("a", None)])
    assert read(path) == {"b": {"x": 2}, "c": 3}
    assert read(path, depth=3) == {"b": {"x": 2, "y": 2}, "c": 3}


def test_each_process_begins_a_journal_of_its_own(path: Path) -> None:
    opened(path).append([row("b", 1)])
    opened(path).append([row("b", 2), row("c", 3)])
    assert [one.name for one in TableJournal(path, Disk()).paths] == ["things.1.journal", "things.2.journal"]
    assert read(path) == {"a": 1, "b": 2, "c": 3}


def test_a_torn_end_loses_only_what_was_not_flushed(path: Path) -> None:
    journal = opened(path)
    journal.append([row("b", 1)])
    whole = journal.paths[0].stat().st_size
    journal.append([row("c", 2)])
    text = journal.paths[0].read_bytes()
    for end in range(whole, len(text)):
        for rest in (b"", b"\0" * (len(text) - end)):
            journal.paths[0].write_bytes(text[:end] + rest)
            assert read(path) == {"a": 1, "b": 1}
            again = opened(path)
            assert not again.is_damaged
    again.append([row("d", 4)])
    assert read(path) == {"a": 1, "b": 1, "d": 4}


def test_a_damaged_record_between_others_is_told_and_the_others_count(path: Path) -> None:
    journal = opened(path)
    for name in "bcd":
        journal.append([row(name, 1)])
    text = journal.paths[0].read_bytes()
    for at in range(text.index(b"\n") + 1, text.rindex(b"\n", 0, -1)):
        journal.paths[0].write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
        again = opened(path)
        assert again.is_damaged, at
        assert not again.takes_changes, at
        assert read(path) == {"a": 1, "b": 1, "d": 1}, at


def test_journals_of_another_file_are_not_used(path: Path) -> None:
    opened(path).append([row("b", 1)])
    path.write_bytes(WHOLE + b"\n")
    journal = opened(path)
    assert journal.is_foreign
    assert read(path) == {"a": 1}
    path.unlink()
    assert TableJournal(path, Disk()).load(None) == [{"table": {"b": 1}}], "without a file they are all that is left"


def test_of_the_journals_of_another_file_rows_are_added_that_it_cannot_know(path: Path) -> None:
    journal = opened(path)
    for text in (
        b'{"table":{"new":1},"made":["new"]}',
        b'{"table":{"new":2,"a":2}}',
        b'{"table":{"a":null}}',
        b'{"table":{"a":3},"made":["a"]}',
        b'{"table":{"gone":1,"theirs":1},"made":["gone","theirs"]}',
        b'{"table":{"gone":null}}',
    ):
        journal.append([text])
    assert read(path) == {"a": 3, "new": 2, "theirs": 1}
    path.write_bytes(b'{"table":{"theirs":7}}')
    assert read(path) == {"theirs": 7, "new": 2}, "the other program has deleted a, which it knew"


def test_the_old_and_the_new_file_are_both_named_while_one_takes_the_place_of_the_other(path: Path) -> None:
    journal = opened(path)
    journal.append([row("b", 1)])
    first = journal.begin()
    journal.append([row("c", 1)])
    whole = b'{"table":{"a":1,"b":1}}'
    base = Base(crc32(whole), len(whole), first)
    journal.name_base(base)
    assert read(path) == {"a": 1, "b": 1, "c": 1}
    path.write_bytes(whole)
    assert read(path) == {"a": 1, "b": 1, "c": 1}
    journal.forget_before(base)
    assert read(path) == {"a": 1, "b": 1, "c": 1}
    assert [one.name for one in journal.paths] == ["things.2.journal"]
    journal.append([row("c", None)])
    assert read(path) == {"a": 1, "b": 1}
    journal.remove()
    assert list(journal.paths) == []
    assert not journal.is_damaged


@pytest.mark.parametrize("is_taken_back", [False, True])
def test_a_file_whose_place_was_not_flushed_stays_named_while_the_next_takes_it(
    path: Path, is_taken_back: bool
) -> None:
    journal = opened(path)
    journal.append([row("b", 1)])
    base = Base(crc32(whole := b'{"table":{"a":1,"b":1}}'), len(whole), journal.begin())
    journal.append([row("c", 1)])
    journal.name_base(base)
    path.write_bytes(WHOLE if is_taken_back else whole)
    journal.note_replacement(base)  # and flushing its directory fails
    journal.append([row("d", 1)])
    first = journal.begin()
    journal.append([row("e", 1)])
    journal.name_base(Base(1, 2, first))
    assert read(path) == dict.fromkeys("abcde", 1)


@pytest.mark.parametrize("kind", ["write", "flush"])
def test_after_a_failure_nothing_is_lost_and_nothing_torn_stays(path: Path, kind: str) -> None:
    disk = FailingDisk()
    journal = opened(path, disk)
    journal.append([row("b", 1)])
    setattr(disk, f"{kind}_error", errno.ENOSPC)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            journal.append([row("c", "long" * 100)])
    setattr(disk, f"{kind}_error", None)
    journal.append([row("d", 1)])
    journal.append([row("e", 1)])
    found = read(path)
    found.pop("c", None)
    assert found == {"a": 1, "b": 1, "d": 1, "e": 1}
    assert not opened(path).is_damaged


def test_without_the_names_of_files_every_journal_counts_and_the_loss_is_told(path: Path) -> None:
    opened(path).append([row("b", 1)])
    named = path.parent.parent / "comet" / "tables" / "things.bases"
    for damage in (lambda: named.write_bytes(b"["), named.unlink):
        damage()
        assert opened(path).is_damaged
        assert read(path) == {"a": 1, "b": 1}


def test_a_process_appends_to_no_journal_that_its_file_does_not_go_on_from(path: Path) -> None:
    """The earlier process ended when the file stood and nothing had been appended since."""
    journal = opened(path)
    journal.append([row("b", 1)])
    first = journal.begin()
    whole = b'{"table":{"a":1,"b":1}}'
    base = Base(crc32(whole), len(whole), first)
    journal.name_base(base)
    path.write_bytes(whole)
    journal.forget_before(base)
    assert journal.paths == []
    opened(path).append([row("c", 2)])
    assert read(path) == {"a": 1, "b": 1, "c": 2}
    opened(path).append([row("d", 3)])
    assert read(path) == {"a": 1, "b": 1, "c": 2, "d": 3}
