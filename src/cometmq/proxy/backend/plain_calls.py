"""Plain SendMessage and AckMessage calls in the compiled core, from received bytes to responses (hot path).

Theory of operation. The first plain message of a client, or its first acknowledgement, is handled by Python, which
checks the client, the topic and its queues. After it, the connection passes the bytes of later calls to the core, which
handles those at the beginning that are plain: a complete call of the same client in the usual form. All other calls,
and everything after them, are left to Python in order.

* Sends are normal messages for a topic and queues that Python has checked. The core writes the messages and the
  responses into the batch of :mod:`cometmq.broker.turn.plain_sends`; the responses are sent when the turn is stored.
* Acknowledgements are valid receipt handles of this broker. The core collects those of many calls in a block, with the
  responses; Python acknowledges all of the block at once (:mod:`cometmq.proxy.backend.plain_acks`), or handles all of
  its calls itself.

A call of which only the data is missing waits in the connection's buffer, so that the core can handle it later.

Invariants.

* The core handles a call only if Python would store its messages or acknowledge them, and its results are byte for byte
  the same: records, queue units, index entries, and the frames of the response. Only the user properties of a message
  may have another order: the core keeps that of the request, as Apache's proxy does.
* Headers are decoded by one decoder for each connection, for both. The headers of a call that is left to Python change
  nothing before Python decodes them.
* The core handles no call if accounts are checked, quotas are set, hooks are installed, or responses wait for more than
  the write of their turn.
* The core knows a topic for calls only while it knows it for sends.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from cometmq.broker.controller import Broker
from cometmq.limits import MAX_BATCH_MESSAGES
from cometmq.message.hosts import encode_host
from cometmq.proxy.backend.backend import CallsPeer, CallsSession, RenewedHandles, TopicInfo
from cometmq.proxy.backend.plain_acks import AckBlock, acknowledge, refused_response
from cometmq.proxy.converter import RESERVED
from cometmq.proxy.errors import OK, ProxyError, refused
from cometmq.proxy.http2.connection import MAX_TAKEN_ANSWER_BYTES, TakenCalls
from cometmq.proxy.http2.frames import HEAD_BYTES, answers_in
from cometmq.proxy.limits import MAX_ACK_ENTRIES
from cometmq.proxy.protocol import v2
from cometmq.proxy.rpc.status import HEADERS, OK_TRAILERS
from cometmq.remoting.processors import Response
from cometmq.remoting.server_connection import ServerConnection

MAX_REQUEST_BYTES: Final = 256 * 1024
"""Maximum size of a request that the core handles."""
_FIXED_BYTES: Final = 3 * HEAD_BYTES + len(HEADERS) + len(OK_TRAILERS)
"""Size of a response without its data."""
_PREFIX_BYTES: Final = 5
_PATHS: Final = (
    b"/apache.rocketmq.v2.MessagingService/SendMessage",
    b"/apache.rocketmq.v2.MessagingService/AckMessage",
)


class CallLimits(NamedTuple):
    """The endpoint's limits for a message."""

    body_bytes: int
    properties: int
    properties_bytes: int


class PlainCalls:
    """The bridge from an endpoint to the core of its broker.

    :param core: the module ``cometmq_core``.
    """

    def __init__(self, core: Any, broker: Broker, limits: CallLimits) -> None:
        self._new = core.PlainCalls
        self._broker = broker
        self._limits = (MAX_BATCH_MESSAGES, *limits, MAX_REQUEST_BYTES)
        self._sends: Any = None
        self.core: Any = None
        """The core's object for the current master, which a failover replaces."""

    @property
    def accepts(self) -> bool:
        """True if the core may handle calls."""
        broker = self._broker
        sends = broker.plain_sends
        if sends is None or broker.access is not None or broker.audit is not None or sends.waits:
            return False
        if sends.core is not self._sends:
            self._sends = sends.core
            answers = (HEADERS, OK_TRAILERS, OK.SerializeToString())
            acks = (broker.config.broker_name, MAX_ACK_ENTRIES, MAX_TAKEN_ANSWER_BYTES - _PREFIX_BYTES)
            self.core = self._new(self._sends, _PATHS, answers, sorted(RESERVED), self._limits, acks)
        return True

    def accept(self, topic: TopicInfo, counter: list[int]) -> bool:
        """Let the core handle the sends to a topic to which a client has just sent; return whether it may.

        :param counter: the number of the next message, by which its queue is chosen.
        """
        if not self.accepts:
            return False
        accepted: bool = self.core.accept_topic(topic.name, counter, topic.queues[0].writable)
        return accepted

    def use(self, peer: CallsPeer, session: CallsSession) -> PlainCaller:
        """Let the core handle the calls of a client on a connection."""
        taker = peer.http2.take_calls
        if not isinstance(taker, PlainCaller) or taker.session is not session:
            taker = peer.http2.take_calls = PlainCaller(self._broker, self, session, peer)
        return taker


class PlainCaller(ServerConnection):
    """A client that calls on one HTTP/2 connection, as the receiver of the core's responses.

    :param peer: the connection, which calls this object with its bytes.
    """

    __slots__ = (
        "_broker",
        "_calls",
        "_client",
        "_http2",
        "_left_to_python",
        "_limiter",
        "_write_now",
        "renewed",
        "session",
    )

    def __init__(
        self,
        broker: Broker,
        calls: PlainCalls,
        session: CallsSession,
        peer: CallsPeer,
    ) -> None:
        super().__init__(broker.server)
        self.peer_bytes = encode_host(*session.identity.peer)
        self.session: Final = session
        self._broker = broker
        self._calls = calls
        self._http2 = peer.http2
        self._write_now = peer.write_now
        self._client = (session.identity.client_id.encode("latin-1"), peer.peer_ip)
        self._limiter = broker.limiter
        self._left_to_python = 0
        """Number of the next calls that Python handles."""
        self.renewed: RenewedHandles | None = None
        """The handles that are renewed until their messages are acknowledged; ``None`` if the core must not handle
        acknowledgements, since Python has not handled one of this client.
        """

    def __call__(self, decoder: Any, data: bytes, at: int, last_stream: int) -> TakenCalls | None:
        """Handle the plain calls that begin at ``data[at:]``; return ``None`` if the connection must wait for the next
        round.
        """
        server = self._broker.server
        if self._left_to_python:
            self._left_to_python -= 1
            return at, last_stream, 0, 0, False
        if self.session.is_removed or self._limiter.is_active or server.path.hooks:
            return at, last_stream, 0, 0, False
        if server.round_is_over:
            return None
        clock, renewed = server.clock, self.renewed
        now_ms = clock.now_ms()
        takes = (renewed is not None, bool(renewed))
        end, last, size, calls, is_cut, acks = self._calls.core.take(
            self, self.peer_bytes, self._client, decoder, data, at, last_stream, now_ms, takes
        )
        if acks is not None:
            if not acknowledge(self._broker, acks, partial(self._acknowledged, acks, calls)):
                decoder.undo()
                self._left_to_python = calls - 1
                return at, last_stream, 0, 0, False
            decoder.commit()
        if calls:
            self.session.called_at = clock.monotonic()
            if not server.round_is_scheduled:
                server.schedule_round()
        return end, last, size, calls, is_cut

    def _acknowledged(self, acks: AckBlock, calls: int, error: ProxyError | None) -> None:
        """Answer the calls of a block."""
        group, _, handles, answers = acks
        if error is not None:
            for stream, _, data, _ in answers_in(answers):
                self._send(stream, refused_response(data[_PREFIX_BYTES:], error))
            return
        if handles and self.renewed is not None:
            self.renewed.remove_all(self.session.key, group, handles)
        self.write_last(answers, calls)

    def write_last(self, data: bytes, count: int = 1) -> None:
        """Send the responses to calls whose messages have been stored."""
        http2 = self._http2
        if http2.reserve(len(data) - count * _FIXED_BYTES, count):
            self._write_now(data)
        else:
            http2.send_answers(data)

    def refuse_all(self, opaques: Iterable[tuple[int, int]], response: Response) -> None:
        """Answer calls whose messages have not been stored; an opaque is the number of a stream."""
        status = refused(response.code, response.remark).status
        payload = v2.SendMessageResponse(status=status).SerializeToString()
        for stream, _ in opaques:
            self._send(stream, payload)

    def _send(self, stream: int, payload: bytes) -> None:
        data = len(payload).to_bytes(_PREFIX_BYTES, "big") + payload
        self._http2.send_answer(stream, HEADERS, data, OK_TRAILERS)
