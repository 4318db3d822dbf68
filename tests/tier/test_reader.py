"""The archive reader gives the records of an archive byte for byte, in the order of their offsets."""

from __future__ import annotations

import zlib
from itertools import chain
from pathlib import Path

import pytest
from tests.tier.archives import AT_MS, QUEUE, ask, make_records, open_reader, read_all, write_archive

from cometmq.archive import ArchiveError
from cometmq.message.hosts import encode_host
from cometmq.message.record import encode_record, iter_records
from cometmq.tier.frames import FindTime

HOUR_MS = 3_600_000


def test_records_of_all_kinds_are_rebuilt_byte_for_byte(tmp_path: Path) -> None:
    """With IPv6 hosts, every field different, in several row groups and files."""
    parts = [make_records(3_000), make_records(3_000, 4_000, first=3_000, at_ms=AT_MS + HOUR_MS)]
    write_archive(tmp_path, parts)
    assert b"".join(read_all(open_reader(tmp_path))) == b"".join(chain(*parts))


@pytest.mark.parametrize("offset", [0, 1, 999, 2_999])
def test_reading_begins_at_any_offset_and_keeps_to_its_limits(tmp_path: Path, offset: int) -> None:
    records = make_records(3_000)
    write_archive(tmp_path, [records])
    reader = open_reader(tmp_path)
    answer, payload = reader.read(ask(offset, count=5))
    assert bytes(payload) == b"".join(records[offset : offset + 5])
    assert (answer.count, answer.next_offset) == (len(records[offset : offset + 5]), min(offset + 5, 3_000))
    answer, payload = reader.read(ask(offset, size=1))
    assert bytes(payload) == records[offset]
    answer, payload = reader.read(ask(offset, before=offset + 1))
    assert bytes(payload) == records[offset]


def test_compressed_bodies_and_bodies_that_cannot_be_decompressed_are_as_stored(tmp_path: Path) -> None:
    records = [
        encode_record(
            topic=QUEUE.topic,
            queue_id=0,
            queue_offset=number,
            physical_offset=number,
            body=body,
            properties_text="",
            sys_flag=1 if number else 0,
            born_timestamp=0,
            born_host=encode_host("::1", 1),
            store_timestamp=AT_MS,
            store_host=encode_host("::1", 2),
        )
        for number, body in enumerate((b"", zlib.compress(b"x" * 1_000), b"broken"))
    ]
    write_archive(tmp_path, [records])
    assert b"".join(read_all(open_reader(tmp_path))) == b"".join(records)


def test_hours_that_interleave_are_read_in_the_order_of_offsets(tmp_path: Path) -> None:
    """A clock that was moved back and forth: neighbouring offsets are in files of different hours."""
    early, late = make_records(1_000), make_records(1_000, at_ms=AT_MS + HOUR_MS)
    mixed = [(late if number // 7 % 2 else early)[number] for number in range(1_000)]
    write_archive(tmp_path, [mixed])
    assert len(list(tmp_path.glob("topic=*/hour=*"))) == 2
    got = [record.queue_offset for record in iter_records(b"".join(read_all(open_reader(tmp_path))))]
    assert got == list(range(1_000))


def test_offsets_without_messages_are_passed_over(tmp_path: Path) -> None:
    write_archive(tmp_path, [make_records(10), make_records(10, first=50)])
    reader = open_reader(tmp_path)
    answer, payload = reader.read(ask(10, count=2))
    assert [record.queue_offset for record in iter_records(bytes(payload))] == [50, 51]
    assert answer.next_offset == 52


def test_messages_that_are_archived_later_are_found_at_the_end(tmp_path: Path) -> None:
    write_archive(tmp_path, [make_records(10)])
    reader = open_reader(tmp_path)
    assert reader.read(ask(10))[0].count == 0
    write_archive(tmp_path, [make_records(10, first=10)], begin=1)
    assert reader.read(ask(10, count=2))[0].next_offset == 12


@pytest.mark.parametrize("left", [0, 3, 100, 0.5])
def test_a_file_that_is_cut_off_is_an_error_that_names_it(tmp_path: Path, left: float) -> None:
    write_archive(tmp_path, [make_records(1_000)])
    (path,) = tmp_path.glob("topic=*/*/*.parquet")
    content = path.read_bytes()
    path.write_bytes(content[: left if isinstance(left, int) else int(len(content) * left)])
    with pytest.raises(ArchiveError, match=rf"{path.name}.*restore it from a backup"):
        open_reader(tmp_path).read(ask(0))
    path.write_bytes(content)
    assert open_reader(tmp_path).read(ask(0))[0].count == 1_000


def test_damaged_bytes_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    write_archive(tmp_path, [make_records(1_000)])
    (path,) = tmp_path.glob("topic=*/*/*.parquet")
    content = bytearray(path.read_bytes())
    content[100 : len(content) // 2] = bytes(len(content) // 2 - 100)
    path.write_bytes(content)
    with pytest.raises(ArchiveError, match=r"is damaged"):
        open_reader(tmp_path).read(ask(0))


def test_a_time_is_found_across_files_and_row_groups(tmp_path: Path) -> None:
    parts = [make_records(100), make_records(100, first=100, at_ms=AT_MS + HOUR_MS)]
    write_archive(tmp_path, parts)
    reader = open_reader(tmp_path)
    moments = [record.store_timestamp for record in iter_records(b"".join(chain(*parts)))]
    for moment in (moments[0] - 1, moments[50], moments[99] + 1, moments[150], moments[199] + 1):
        found = reader.find_time(FindTime(1, QUEUE.topic, 0, moment, 200))
        first = next((at for at, other in enumerate(moments) if other >= moment), -1)
        earlier = (first if first >= 0 else 200) - 1
        assert (found.offset, found.earlier_offset) == (first, earlier if earlier >= 0 else -1)
