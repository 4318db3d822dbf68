"""Reports and transfers: the same bytes give the same, however they are cut; what cannot be is refused at once."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.limits import MAX_TRANSFER_BYTES
from cometmq.broker.replication.frames import (
    ReplicationError,
    ReportReader,
    Transfer,
    TransferReader,
    encode_report,
    transfer_head,
)

OFFSETS = st.integers(0, 2**63 - 1)
TRANSFERS = st.lists(st.builds(Transfer, OFFSETS, st.binary(max_size=40)), max_size=8)
CUTS = st.lists(st.integers(1, 30), min_size=1, max_size=20)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """The bytes, cut at these distances again and again."""
    cut, at, index = [], 0, 0
    while at < len(data):
        cut.append(data[at : at + cuts[index % len(cuts)]])
        at += len(cut[-1])
        index += 1
    return cut


def encode(transfers: list[Transfer]) -> bytes:
    return b"".join(transfer_head(each.offset, len(each.body)) + each.body for each in transfers)


@given(TRANSFERS, CUTS)
def test_transfers_come_out_as_they_went_in_however_they_are_cut(transfers: list[Transfer], cuts: list[int]) -> None:
    reader = TransferReader()
    assert [each for piece in pieces(encode(transfers), cuts) for each in reader.feed(piece)] == transfers
    assert TransferReader().feed(encode(transfers)) == transfers


@given(st.lists(OFFSETS, min_size=1, max_size=8), CUTS)
def test_the_newest_report_counts_however_they_are_cut(offsets: list[int], cuts: list[int]) -> None:
    data = b"".join(map(encode_report, offsets))
    reader = ReportReader()
    read = [report for piece in pieces(data, cuts) if (report := reader.feed(piece)) is not None]
    assert read[-1] == offsets[-1]
    remaining = iter(offsets)
    assert all(report in remaining for report in read), "in their order"
    assert ReportReader().feed(data) == offsets[-1]


def test_layout_is_apaches() -> None:
    assert encode_report(0x0102030405060708) == bytes(range(1, 9))
    assert transfer_head(0x0102030405060708, 0x090A0B0C) == bytes(range(1, 13))


@pytest.mark.parametrize("size", [-1, MAX_TRANSFER_BYTES + 1, 2**31 - 1])
def test_transfers_of_sizes_that_cannot_be_are_refused_by_their_head(size: int) -> None:
    with pytest.raises(ReplicationError, match=str(size)):
        TransferReader().feed(struct.pack(">qi", 0, size))


def test_largest_transfer_is_taken() -> None:
    body = bytes(MAX_TRANSFER_BYTES)
    assert TransferReader().feed(transfer_head(7, len(body)) + body) == [Transfer(7, body)]


def test_negative_offsets_are_refused() -> None:
    with pytest.raises(ReplicationError):
        TransferReader().feed(struct.pack(">qi", -1, 0))
    with pytest.raises(ReplicationError):
        ReportReader().feed(struct.pack(">q", -1))
