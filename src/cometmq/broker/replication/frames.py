"""The frames between master and slave on the master's HA port (sans-I/O; ``HAConnection``, ``HAClient``).

All numbers are big-endian::

    slave → master    int64 maxPhyOffset       a *report*: the end of the slave's log
    master → slave    int64 phyOffset          a *transfer*: the log offset of its bytes
                      int32 size               bytes that follow; 0 in a heartbeat
                      bytes body               cut anywhere, but within one log file

The slave begins: its first report contains the end of its log (0 for an empty log), and the master sends transfers
starting at that offset. If a master of CometMQ checks accounts, the slave signs in first::

    slave → master    8 bytes ``SIGN_IN``      not a report: as a number it is negative
                      a frame of remoting      a signed request without an answer, with the field ``REPORT_FIELD``

A member of a set always signs in, with another request, and the master answers it
(:mod:`cometmq.broker.replication.member_sign_in`). Its first report is the log offset from which to copy. From then on,
two values have another meaning, and each transfer also has the confirmed end::

    member → master   int64 maxPhyOffset       -1: the member has copied the tables (``TABLES_COPIED``)
    master → member   int64 phyOffset
                      int32 size               -1: the member must copy the tables now (``COPY_TABLES``)
                      int64 confirmed          log offset up to which all members in sync have the log
                      bytes body
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from cometmq.broker.limits import MAX_SIGN_IN_BYTES, MAX_TRANSFER_BYTES
from cometmq.errors import CometMQError

SIGN_IN: Final = b"\xffCometMQ"
REPORT_FIELD: Final = "haReport"
"""Name of the field that contains the slave's first report. Signatures of other requests, which lack this field, are
not valid for signing in.
"""
SIGNS_IN: Final = "haSignIn"
"""The runtime information key by which a master asks slaves to sign in."""
TABLES_COPIED: Final = -1
"""A member's report that it has copied the tables."""
COPY_TABLES: Final = -1
"""The size in a frame by which the master asks a member to copy the tables; the frame has no body."""
_TOTAL: Final = struct.Struct(">i")
_REPORT: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">qi")
_MEMBER_HEAD: Final = struct.Struct(">qiq")
REPORT_BYTES: Final = _REPORT.size


class ReplicationError(CometMQError):
    """Raised when the peer sent an invalid value or did not answer; the connection is then closed."""


class Transfer(msgspec.Struct, frozen=True, gc=False):
    """A transfer from a master."""

    offset: int
    """Log offset of the first byte of ``body``; in a heartbeat, the log offset of the next byte to send."""
    body: bytes
    confirmed: int = 0
    """For a member: log offset up to which all members in sync have the log."""
    asks_for_tables: bool = False
    """For a member: the tables must be copied now."""


def encode_report(max_offset: int) -> bytes:
    """Encode a slave's report that its log ends at ``max_offset``."""
    return _REPORT.pack(max_offset)


def transfer_head(offset: int, size: int) -> bytes:
    """Encode the header of a transfer with ``size`` bytes of the log, starting at ``offset``."""
    return _HEAD.pack(offset, size)


def member_transfer_head(offset: int, size: int, confirmed: int) -> bytes:
    """Encode the header of a transfer to a member of a set."""
    return _MEMBER_HEAD.pack(offset, size, confirmed)


class ReportReader:
    """Reads a slave's reports from the bytes received on its connection."""

    __slots__ = ("_begins", "_rest", "count", "first", "signed_in", "tables_copied")

    def __init__(self) -> None:
        self._rest = b""
        self._begins = True
        self.signed_in: bytes | None = None
        """The frame with which the slave has signed in."""
        self.first: int | None = None
        """The first report."""
        self.count = 0
        """Number of reports so far."""
        self.tables_copied = 0
        """Number of times that a member has copied the tables because the master asked for it."""

    def feed(self, data: bytes) -> int | None:
        """Return the newest complete report, or ``None`` if there is none.

        :raises ReplicationError: a report is negative, or the slave signs in with a frame of an invalid size.
        """
        data = self._rest + data
        if self._begins and len(data) >= REPORT_BYTES:
            if data.startswith(SIGN_IN):
                end = _end_of_frame(data, len(SIGN_IN))
                if end is None:
                    self._rest = data
                    return None
                self.signed_in, data = data[len(SIGN_IN) : end], data[end:]
            self._begins = False
        whole = len(data) - len(data) % REPORT_BYTES
        self._rest = data[whole:]
        newest: int | None = None
        for (offset,) in _REPORT.iter_unpack(data[:whole]):
            if offset == TABLES_COPIED and self.signed_in is not None:
                self.tables_copied += 1
                continue
            if offset < 0:
                raise ReplicationError(f"the slave reported an invalid end of its log: {offset}")
            newest = int(offset)
            self.count += 1
            if self.first is None:
                self.first = newest
        return newest


def _end_of_frame(data: bytes, at: int) -> int | None:
    """Return the end of the frame at ``data[at:]``, or ``None`` if the frame is incomplete."""
    if len(data) - at < _TOTAL.size:
        return None
    (total,) = _TOTAL.unpack_from(data, at)
    if not 0 < total <= MAX_SIGN_IN_BYTES:
        raise ReplicationError(f"the slave's sign-in frame has {total} bytes; the maximum is {MAX_SIGN_IN_BYTES}")
    end = at + _TOTAL.size + int(total)
    return end if len(data) >= end else None


class TransferReader:
    """Reads a master's transfers from the bytes received on its connection.

    :param is_member: True if the master sends the longer headers for members of its set.
    """

    __slots__ = ("_data", "_head", "_is_member")

    def __init__(self, *, is_member: bool = False) -> None:
        self._data = bytearray()
        self._is_member = is_member
        self._head = _MEMBER_HEAD if is_member else _HEAD

    def feed(self, data: bytes) -> list[Transfer]:
        """Return the transfers that the received bytes complete.

        :raises ReplicationError: an offset or size is negative, or a size exceeds the limit.
        """
        self._data += data
        view = memoryview(self._data)
        head_bytes = self._head.size
        transfers = []
        at = 0
        while len(view) - at >= head_bytes:
            found = self._head.unpack_from(view, at)
            offset, size = found[:2]
            confirmed = found[2] if self._is_member else 0
            asks = self._is_member and size == COPY_TABLES
            size = 0 if asks else size
            if min(offset, confirmed) < 0 or not 0 <= size <= MAX_TRANSFER_BYTES:
                raise ReplicationError(
                    f"invalid transfer of {size} bytes at offset {offset}; the limit is {MAX_TRANSFER_BYTES} bytes"
                )
            end = at + head_bytes + size
            if end > len(view):
                break
            transfers.append(Transfer(offset, bytes(view[at + head_bytes : end]), confirmed, asks))
            at = end
        view.release()
        del self._data[:at]
        return transfers
