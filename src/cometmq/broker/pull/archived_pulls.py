"""Pulls below a queue's first offset in the store, which are answered with messages from the archive.

A pull waits until the archive reader has answered, but at most a few seconds. Then it is answered as if there were no
new message, at the same offset: clients pull again without a pause or a warning. Filters are applied here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from cometmq.broker.archived.archived_messages import ArchivedMessages
from cometmq.broker.archived.searches import records_in
from cometmq.broker.config import LiveConfig
from cometmq.broker.limits import ARCHIVE_FILTERED_RECORDS
from cometmq.broker.pull.archived_choice import choose_records
from cometmq.broker.pull.filters import MessageFilter
from cometmq.broker.turn.targets import RefusedError
from cometmq.message.layout import RECORD
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.headers import PullMessageRequestHeader
from cometmq.remoting.processors import Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import GetMessageStatus, GetResult, MessageStore
from cometmq.tier.frames import Answer, Records

_log = logging.getLogger(__name__)

_OFFSET: Final = RECORD.struct("queue_offset").unpack_from

Check = Callable[[ServerConnection, PullMessageRequestHeader], MessageFilter]
Answering = Callable[[ServerConnection, PullMessageRequestHeader, GetResult], Response]


class ArchivedPulls:
    """Answers pulls from the archive.

    :param check: checks a pull and returns its filter, again before it is answered.
    :param response: makes the response of a result.
    """

    def __init__(
        self, archived: ArchivedMessages, store: MessageStore, live: LiveConfig, check: Check, response: Answering
    ) -> None:
        self._archived = archived
        self._store = store
        self._live = live
        self._check = check
        self._response = response

    def read(
        self, connection: ServerConnection, request: Request[Any], wanted: MessageFilter, result: GetResult
    ) -> GetResult | None:
        """Return ``None`` if a pull will be answered from the archive later, or the result to respond with now.

        :param result: the store's result.
        :raises RefusedError: too many pulls wait.
        """
        header: PullMessageRequestHeader = request.header
        extent = self._archived.extent(header.topic, header.queue_id)
        if extent is None and not self._archived.may_have(header.topic):
            return result
        if self._archived.is_full:
            raise RefusedError(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]too many pulls wait for archived messages")
        if extent is None:
            self._archived.wait(lambda: self._respond(connection, request, None, b""))
            return None
        if header.queue_offset < extent.first:
            return GetResult(GetMessageStatus.OFFSET_TOO_SMALL, extent.first, extent.first, result.max_offset)
        config = self._live.current
        count = min(header.max_msg_nums, config.max_transfer_count_on_message_in_memory)
        if not wanted.wants_all:
            count = max(count, ARCHIVE_FILTERED_RECORDS)
        most_bytes = config.max_transfer_bytes_on_message_in_memory
        if header.max_msg_bytes is not None:
            most_bytes = min(most_bytes, max(header.max_msg_bytes, 1))

        def answer(answer: Answer | None, payload: bytes) -> None:
            self._respond(connection, request, answer if isinstance(answer, Records) else None, payload)

        self._archived.read(extent, header.queue_offset, (max(count, 1), most_bytes), answer)
        return None

    def again(self, header: PullMessageRequestHeader, result: GetResult) -> GetResult:
        """Return the result for a held pull whose messages were deleted while it waited, so that the client pulls
        again.
        """
        if self._archived.extent(header.topic, header.queue_id) is None:
            return result
        return self._later(header, result.min_offset, result.max_offset, GetMessageStatus.NO_MATCHED_MESSAGE)

    def _respond(
        self, connection: ServerConnection, request: Request[Any], answer: Records | None, payload: bytes
    ) -> None:
        if connection.closed:
            return
        header: PullMessageRequestHeader = request.header
        try:
            wanted = self._check(connection, header)
            response = self._response(connection, header, self._result(connection, header, wanted, answer, payload))
        except RefusedError as refused:
            response = refused.response()
        connection.respond(request, response, polling=True)

    def _result(
        self,
        connection: ServerConnection,
        header: PullMessageRequestHeader,
        wanted: MessageFilter,
        answer: Records | None,
        payload: bytes,
    ) -> GetResult:
        low, high = self._store.extent(header.topic, header.queue_id)
        extent = self._archived.extent(header.topic, header.queue_id)
        if extent is None and not self._archived.may_have(header.topic):
            # the topic was deleted, or the archive has another one of its name
            return GetResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high)
        if answer is None or extent is None or connection.is_behind:
            return self._later(header, low, high, GetMessageStatus.OFFSET_FOUND_NULL)
        if not answer.count:
            self._archived.report_gap(header.topic, header.queue_id, header.queue_offset, answer.next_offset)
            return GetResult(GetMessageStatus.NO_MATCHED_MESSAGE, answer.next_offset, extent.first, high)
        result = filtered(payload, answer.count, wanted, max(header.max_msg_nums, 1), answer.next_offset)
        result.min_offset, result.max_offset = extent.first, high
        result.log_offset = self._store.max_physical_offset  # so that no slave is suggested
        return result

    @staticmethod
    def _later(header: PullMessageRequestHeader, low: int, high: int, status: GetMessageStatus) -> GetResult:
        return GetResult(status, header.queue_offset, low, high)


def filtered(payload: bytes, found: int, wanted: MessageFilter, most: int, next_offset: int) -> GetResult:
    """Return those records in a response that a filter accepts.

    :param found: the number of records in the answer.
    :param most: maximum number of records to return.
    :param next_offset: the offset after the last record in the answer.
    """
    if wanted.wants_all:
        return GetResult(GetMessageStatus.FOUND, next_offset, 0, 0, [payload], found, len(payload))
    chunks, rest = choose_records(records_in(payload), wanted, most, len(payload))
    if rest is not None:
        next_offset = _OFFSET(rest)[0]
    status = GetMessageStatus.FOUND if chunks else GetMessageStatus.NO_MATCHED_MESSAGE
    return GetResult(status, next_offset, 0, 0, chunks, len(chunks), sum(map(len, chunks)))
