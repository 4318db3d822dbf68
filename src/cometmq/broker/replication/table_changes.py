"""GET_TABLE_CHANGES (30040): slaves copy the changed rows of the master's tables (a CometMQ extension).

The body has one line of JSON for each slice of the table, so that both sides handle one line per round of the loop::

    {"dataVersion":{…},"removed":["name",…]}
    {"name":row,…}
    …

The tables ``topics`` and ``groups`` contain their rows. The table ``offsets`` contains the offsets of each
``topic@group`` by queue id; slaves copy it in parts, each of which has the pairs of some groups. The table ``ends``
contains the offsets after each topic's last messages by queue id, and is always complete. A slave that sends the mark
of its last copy receives the rows that changed after it, and the rows that it changed itself: the body of its request
is a JSON list of their names. If it sends no valid mark, it receives all rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import MAX_LIST_BYTES, OFFSET_PARTS, SLAVE_TABLE_SECONDS, TABLE_ROWS_PER_SLICE
from cometmq.broker.replication.frames import ReplicationError
from cometmq.broker.slices import Slice, Steps, batches, run_in_slices
from cometmq.broker.tables.consumer_offsets import ConsumerOffsetManager
from cometmq.broker.tables.offset_table import WHOLE, Part
from cometmq.broker.tables.queue_offsets import QueueOffsets
from cometmq.broker.tables.versioned_table import VersionedTable
from cometmq.message.names import TRANS_OP_HALF_TOPIC
from cometmq.remoting.bodies import BodyError, DataVersion
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import GetTableChangesRequestHeader, GetTableChangesResponseHeader
from cometmq.remoting.permissions import Action, needs_cluster
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection

T = TypeVar("T")

TOPICS: Final = "topics"
GROUPS: Final = "groups"
OFFSETS: Final = "offsets"
ENDS: Final = "ends"

_names: Final = msgspec.json.Decoder(set[str])


class Head(msgspec.Struct, rename="camel", omit_defaults=True):
    """The first line of a response."""

    data_version: DataVersion | None = None
    removed: list[str] = []


class TableChangesProcessor:
    """Handles slaves' requests for table changes."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    @answers(
        RequestCode.GET_TABLE_CHANGES,
        limits=("TABLE_ROWS_PER_SLICE", "MAX_CHANGED_NAMES", "MAX_LIST_BYTES", "OFFSET_PARTS"),
        permission=needs_cluster(Action.UPDATE),
    )
    def changes(
        self, connection: ServerConnection, request: Request[GetTableChangesRequestHeader], body: bytes
    ) -> Response | None:
        """Return the rows of a table that have changed since a slave copied it, or all rows."""
        name, broker = request.header.table, self._broker
        part = Part(request.header.part, request.header.parts)
        if not 0 <= part.number < part.parts <= OFFSET_PARTS or (part.number and name != OFFSETS):
            return Response(ResponseCode.INVALID_PARAMETER, remark=f"no table has a part {part.number} of {part.parts}")
        if part.number:
            return run_in_slices(connection, request, self._offsets("", part))
        if name == ENDS:
            return run_in_slices(connection, request, _answer(Head(), self._ends(), _whole("")))
        table: VersionedTable[Any] | ConsumerOffsetManager
        if name in (TOPICS, GROUPS):
            table = broker.topics if name == TOPICS else broker.groups
            version = table.version
        elif name == OFFSETS:
            table, version = broker.offsets, None
        else:
            return Response(ResponseCode.INVALID_PARAMETER, remark=f"slaves cannot copy the table {name!r}")
        is_long = len(body) > MAX_LIST_BYTES
        try:
            also = _names.decode(body) if body and not is_long else set()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return Response(ResponseCode.INVALID_PARAMETER, remark=f"malformed list of names: {error}")
        mark, names = table.changes.since("" if is_long else request.header.since)
        if names is not None:
            names |= also
        elif isinstance(table, ConsumerOffsetManager):
            return run_in_slices(connection, request, self._offsets(mark, part))
        return run_in_slices(connection, request, self._rows(mark, names, table.table, version))

    def _offsets(self, mark: str, part: Part) -> Steps:
        """Return all consumer offsets in a part."""
        table = self._broker.offsets.table
        slices = (some for keys in table.slices(part) for some in _slices(keys, table, []))
        return _answer(Head(), slices, _whole(mark, part.parts))

    def _rows(self, mark: str, names: set[str] | None, table: Mapping[str, Any], version: DataVersion | None) -> Steps:
        if names is None:
            return _answer(Head(version), _slices(list(table), table, []), _whole(mark))
        removed: list[str] = []
        rows = _slices(names, table, removed)
        return _answer(Head(version, removed), rows, GetTableChangesResponseHeader(mark, whole=False))

    def _ends(self) -> Iterator[dict[str, Any]]:
        """Yield the ends of all queues that have ever contained messages.

        Queues created in the meantime are in the slave's log.
        """
        for names in batches([*self._broker.topics.table, TRANS_OP_HALF_TOPIC], TABLE_ROWS_PER_SLICE // 10):
            yield {name: ends for name in names if (ends := self._ends_of(name))}

    def _ends_of(self, name: str) -> dict[int, int]:
        topic = self._broker.topics.get(name)
        extents = (
            (queue_id, self._broker.store.stored_end(name, queue_id))
            for queue_id in range(1 if topic is None else topic.write_queue_nums)
        )
        return {queue_id: end for queue_id, end in extents if end}


def _slices(names: Iterable[str], table: Mapping[str, Any], removed: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the existing rows with these names in slices, and add the other names to ``removed``.

    Each offset counts as one row. A slice may be empty.
    """
    some: dict[str, Any] = {}
    part = Slice(TABLE_ROWS_PER_SLICE)
    for name in names:
        row, cost = table.get(name), 1
        if row is None:
            removed.append(name)
        else:
            if isinstance(row, QueueOffsets):
                row = row.as_dict()
                cost += len(row)
            some[name] = row
        if part.ends_after(cost):
            yield some
            some = {}
    yield some


def _whole(mark: str, parts: int = 1) -> GetTableChangesResponseHeader:
    return GetTableChangesResponseHeader(mark, whole=True, parts=parts)


def _answer(head: Head, slices: Iterable[dict[str, Any]], header: GetTableChangesResponseHeader) -> Steps:
    lines: list[bytes] = []
    for number, some in enumerate(slices):
        if number:
            yield
        if some:
            lines.append(msgspec.json.encode(some))
    return Response(header=header, body=b"\n".join([msgspec.json.encode(head), *lines]))


class TableChanges(msgspec.Struct, frozen=True):
    """The master's response with table changes."""

    mark: str
    """The mark to send in the next request."""
    whole: bool
    """True if the response contains all rows of the table, or of the requested part of it."""
    head: Head
    body: bytes
    rows_at: int
    parts: int = 1
    """Number of parts of the table, of which this is one."""

    def rows(self, kind: type[T]) -> Iterator[tuple[str, T]]:
        """Yield each row with its name, decoding one line at a time.

        :raises BodyError: a line is malformed; the rows yielded before are valid.
        """
        decoder = msgspec.json.Decoder(dict[str, kind])  # type: ignore[valid-type]
        at = self.rows_at
        while at < len(self.body):
            end = self.body.find(b"\n", at)
            end = len(self.body) if end < 0 else end
            try:
                yield from decoder.decode(memoryview(self.body)[at:end]).items()
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise BodyError(f"malformed table changes at byte {at}: {error}") from error
            at = end + 1


class MasterTables:
    """Sends a slave's requests to its master.

    :param master: ``host:port`` for requests.
    """

    def __init__(self, client: RemotingClient, master: str) -> None:
        self._client: Final = client
        self._master: Final = master

    async def changes(
        self, table: str, since: str = "", also: Collection[str] = (), part: Part = WHOLE
    ) -> TableChanges | None:
        """Request the changes since a mark; return ``None`` if the master does not support the request.

        :param also: the names of rows that the slave changed itself.
        :param part: the part to return if the master answers with all rows.

        :raises ReplicationError: the master answers with an error.
        :raises RemotingError: the master does not answer.
        :raises BodyError: the answer is malformed.
        """
        header = GetTableChangesRequestHeader(table=table, since=since, part=part.number, parts=part.parts)
        code = RequestCode.GET_TABLE_CHANGES
        body = msgspec.json.encode(list(also)) if since and also else b""
        answer = await self._client.invoke(self._master, code, header, body, timeout_s=SLAVE_TABLE_SECONDS)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise ReplicationError(f"{code.name} for {table}: code {answer.code}, {answer.remark}")
        given = answer.header(GetTableChangesResponseHeader)
        end = answer.body.find(b"\n")
        end = len(answer.body) if end < 0 else end
        try:
            head = msgspec.json.decode(answer.body[:end], type=Head)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BodyError(f"malformed changes to {table}: {error}") from error
        return TableChanges(given.mark, given.whole, head, answer.body, end + 1, given.parts)

    async def part(self, table: str, part: Part) -> TableChanges:
        """Request a further part of a table.

        :raises ReplicationError: the master answers with an error or with something else.
        :raises RemotingError: the master does not answer.
        :raises BodyError: the answer is malformed.
        """
        found = await self.changes(table, part=part)
        if found is None or not found.whole or found.parts != part.parts:
            raise ReplicationError(f"the master sent no part {part.number} of {part.parts} of {table}")
        return found
