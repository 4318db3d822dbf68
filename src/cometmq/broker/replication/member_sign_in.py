"""The frames with which a member of a set signs in at its master, and the master's answer (no sockets).

::

    member → master   8 bytes ``SIGN_IN``
                      a request of remoting    GET_BROKER_EPOCH_CACHE (1007) with the fields of ``SignInHeader`` and
                                               ``REPORT_FIELD``; signed if the member has an account
    master → member   a response of remoting   SUCCESS, the field ``epoch``, and the master's epochs as JSON:
                                               ``{"epoch":7,"epochs":[[3,0],[7,4096]],"begin":0,"end":8192,
                                               "heartbeatMs":1000}``
                                               or another code with the reason, and the highest epoch that it knows;
                                               to a member that has its own name, also the field ``twin``
    member → master   int64 offset             the log offset from which to copy; then reports

Both sides go on only with the same set and the same epoch. Whoever learns of a higher epoch from the other side reads
the set's document. A member with another size of log files is refused, because a record may not cross the end of a
file. Each side waits as long for the other as the longer of both heartbeats demands, so that ``failoverLeaseMs`` can be
changed on one member after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from cometmq.broker.failover.document import MAX_NUMBER, DocumentError, Member, parse_member
from cometmq.broker.failover.halts import address_taken, name_taken
from cometmq.broker.failover.history import History
from cometmq.broker.limits import MAX_HISTORY_BYTES, MAX_MEMBER_HEARTBEAT_MS, MAX_SHOWN_REFUSAL_CHARS, MAX_SIGN_IN_BYTES
from cometmq.broker.replication.frames import REPORT_FIELD, SIGN_IN, ReplicationError
from cometmq.broker.replication.members import MasterSide, SetMember
from cometmq.limits import MAX_ADDRESS_CHARS
from cometmq.message.hosts import parse_address
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_RESPONSE, RemotingCommand, decode_command
from cometmq.remoting.frame import Frame, FrameDecoder, FrameError
from cometmq.remoting.headers import Header, HeaderError, Int32, Int64

SIGN_IN_CODE: Final = RequestCode.GET_BROKER_EPOCH_CACHE
_EPOCH: Final = "epoch"
_TWIN: Final = "twin"
"""The field with the random number of a process that has the same name as the member that signs in."""
_SAME_VERSION: Final = "run the same version of CometMQ on all members"


class SignInHeader(Header):
    """The fields with which a member signs in."""

    member: str
    """The replica's name and generation, for example ``a#3``."""
    epoch: Int64
    """The epoch whose master it wants to follow."""
    set_id: str
    address: str
    """Its ``host:port`` for requests."""
    ha_address: str
    """Its ``host:port`` for followers."""
    process: str
    """A random number, chosen at the start of its process."""
    log_file_bytes: Int64
    """Its ``mappedFileSizeCommitLog``."""
    heartbeat_ms: Int32
    """Interval of its reports, a quarter of its ``failoverLeaseMs``."""


@dataclass(frozen=True, slots=True)
class Follower:
    """A member that has signed in."""

    member: Member
    epoch: int
    address: str
    ha_address: str
    process: str
    heartbeat_s: float


class _WireAnswer(msgspec.Struct, rename="camel"):
    epoch: int
    epochs: list[tuple[int, int]]
    begin: int
    end: int
    heartbeat_ms: int


class SignInRefusedError(ReplicationError):
    """The master refuses a member's sign-in.

    :param known_epoch: the highest epoch that the master knows, or 0.
    :param twin: the random number of the process that refuses it, if that has the same name.
    """

    def __init__(self, message: str, *, next_step: str | None = None, known_epoch: int = 0, twin: str = "") -> None:
        super().__init__(message, next_step=next_step)
        self.known_epoch = known_epoch
        self.twin = twin
        self.ends_by_itself = known_epoch > 0
        """True if nobody must do anything, for example because one side has not heard of an election yet."""

    @property
    def log_level(self) -> int:
        """Return INFO for a refusal that ends by itself."""
        return logging.INFO if self.ends_by_itself else logging.WARNING


# --- the member -----------------------------------------------------------------------------------
def sign_in_frame(side: SetMember, client: RemotingClient, master: str, epoch: int, log_file_bytes: int) -> bytes:
    """Return the bytes with which a member signs in.

    :param master: the master's ``host:port`` for requests, for the hooks of the client.
    """
    header = SignInHeader(
        member=str(side.me),
        epoch=epoch,
        set_id=side.set_id,
        address=side.address,
        ha_address=side.ha_address,
        process=side.process,
        log_file_bytes=log_file_bytes,
        heartbeat_ms=round(side.heartbeat_s * 1000),
    )
    return SIGN_IN + client.request(master, SIGN_IN_CODE, header, b"", {REPORT_FIELD: "0"}).encode()


@dataclass(frozen=True, slots=True)
class Accepted:
    """The master's answer that accepts a member."""

    history: History
    heartbeat_s: float


class AnswerReader:
    """Reads the master's answer to a sign-in."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._decoder = FrameDecoder(MAX_HISTORY_BYTES)

    def feed(self, data: bytes) -> Accepted | None:
        """Return the answer once it is complete.

        :raises SignInRefusedError: the master refuses this member.
        :raises ReplicationError: the answer is malformed, or does not belong to this epoch.
        :raises HistoryError: the list of epochs is not that of a log.
        """
        try:
            frames = self._decoder.feed(data)
            if not frames:
                return None
            if len(frames) > 1 or self._decoder.pending:
                raise FrameError("it is followed by other bytes")
            answer = decode_command(frames[0])
            if answer.code != ResponseCode.SUCCESS:
                raise _refusal(answer)
            wire = msgspec.json.decode(answer.body, type=_WireAnswer)
            heartbeat_s = _heartbeat_s(wire.heartbeat_ms)
        except (FrameError, msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise ReplicationError(
                f"the answer to the sign-in is malformed: {error}", next_step=_SAME_VERSION
            ) from error
        if wire.epoch != self._epoch:
            raise ReplicationError(f"the master has answered for epoch {wire.epoch} instead of {self._epoch}")
        return Accepted(History(tuple(wire.epochs), wire.end, wire.begin).checked(), heartbeat_s)


def _refusal(answer: RemotingCommand) -> SignInRefusedError:
    known = answer.ext_fields.get(_EPOCH, "")
    is_number = known.isascii() and known.isdigit() and len(known) < len(str(MAX_NUMBER)) + 1
    reason = (answer.remark or f"code {answer.code}")[:MAX_SHOWN_REFUSAL_CHARS]
    return SignInRefusedError(
        f"it refuses this member: {reason}",
        known_epoch=min(int(known), MAX_NUMBER) if is_number else 0,
        twin=answer.ext_fields.get(_TWIN, "")[:MAX_ADDRESS_CHARS],
    )


# --- the master -----------------------------------------------------------------------------------
def sign_in_request(frame: bytes) -> tuple[Frame, RemotingCommand]:
    """Return the request with which a slave has signed in.

    :raises FrameError: the frame is malformed.
    """
    frames = FrameDecoder(MAX_SIGN_IN_BYTES).feed(frame)
    if len(frames) != 1:
        raise FrameError("it signed in with the wrong kind of request")
    return frames[0], decode_command(frames[0])


def check_member(side: MasterSide | None, command: RemotingCommand, log_file_bytes: int) -> Follower:
    """Return the member that signs in at this broker; also tell the member of this process about a higher epoch.

    :param side: this process's member, or ``None`` if this broker belongs to no set.
    :raises SignInRefusedError: the member must not follow this broker, at least now.
    """
    if side is None:
        raise SignInRefusedError(
            "this broker is not a member of a set", next_step="set failover in its configuration, as on the others"
        )
    try:
        header = command.header(SignInHeader)
        follower = Follower(
            parse_member(header.member),
            *(header.epoch, header.address, header.ha_address, header.process),
            _heartbeat_s(header.heartbeat_ms),
        )
        _check_addresses(follower)
    except (HeaderError, DocumentError, ValueError) as error:
        raise SignInRefusedError(f"its sign-in is malformed: {error}", next_step=_SAME_VERSION) from error
    if follower.member.name == side.me.name:
        raise _twin(side, follower)
    if header.set_id != side.set_id:
        raise SignInRefusedError(
            f"it belongs to the set {header.set_id[:64]!r}, and this master to {side.set_id!r}",
            next_step="give each set its own failoverPrefix or brokerName; to move a store into this set, save the "
            "messages that you need and empty the store",
        )
    _check_holder(side, follower)
    if header.log_file_bytes != log_file_bytes:
        raise SignInRefusedError(
            f"its log files have {header.log_file_bytes} bytes, and the master's {log_file_bytes}",
            next_step="set mappedFileSizeCommitLog to the master's value and start with an empty store",
        )
    _check_epoch(side, follower)
    return follower


def _twin(side: MasterSide, follower: Follower) -> SignInRefusedError:
    """Return the refusal of a member that has this member's name, or is this process."""
    if follower.process == side.process:
        itself = SignInRefusedError("this process has connected to itself", twin=side.process)
        itself.ends_by_itself = True  # it asks whether its own earlier process lives
        return itself
    halt = name_taken(side.me, follower.address)
    return SignInRefusedError(halt.reason, next_step=halt.next_step, twin=side.process)


def _check_holder(side: MasterSide, follower: Follower) -> None:
    """:raises SignInRefusedError: another member has one of the follower's addresses."""
    addresses = frozenset({follower.address, follower.ha_address})
    mine = {side.address, side.ha_address}
    holder = side.me.name if addresses & mine else side.holder_of(addresses, follower.member.name)
    if holder:
        reason, next_step = address_taken(follower.member.name, holder, follower.address)
        raise SignInRefusedError(reason, next_step=next_step)


def _heartbeat_s(milliseconds: int) -> float:
    """Return an interval of heartbeats in seconds.

    :raises ValueError: no broker has such an interval.
    """
    if not 0 < milliseconds <= MAX_MEMBER_HEARTBEAT_MS:
        raise ValueError(f"the interval of heartbeats is {milliseconds} ms, not from 1 to {MAX_MEMBER_HEARTBEAT_MS}")
    return milliseconds / 1000


def _check_addresses(follower: Follower) -> None:
    """:raises ValueError: an address cannot be in the set's document."""
    for address in (follower.address, follower.ha_address):
        if len(address) > MAX_ADDRESS_CHARS:
            raise ValueError(f"an address has more than {MAX_ADDRESS_CHARS} characters")
        parse_address(address)
    if not 0 < follower.epoch <= MAX_NUMBER or len(follower.process) > MAX_ADDRESS_CHARS:
        raise ValueError("a field is outside its range")


def _check_epoch(side: MasterSide, follower: Follower) -> None:
    if follower.epoch > side.known_epoch:
        side.epoch_seen(follower.epoch)
    if follower.epoch != side.epoch:
        why = "does not serve as master" if side.epoch == 0 else f"serves in epoch {side.epoch}"
        raise SignInRefusedError(
            f"this member {why}, and {follower.member} asks for epoch {follower.epoch}", known_epoch=side.known_epoch
        )


def accept_frame(side: MasterSide, request: RemotingCommand) -> bytes:
    """Return the answer that accepts a member, with the master's epochs."""
    history = side.history()
    heartbeat_ms = round(side.heartbeat_s * 1000)
    body = msgspec.json.encode(_WireAnswer(side.epoch, list(history.epochs), history.begin, history.end, heartbeat_ms))
    return _answer(request, ResponseCode.SUCCESS, None, {_EPOCH: str(side.epoch)}, body)


def refuse_frame(request: RemotingCommand, error: ReplicationError) -> bytes:
    """Return the answer that refuses a member, with the reason."""
    fields = {_EPOCH: "0"}
    if isinstance(error, SignInRefusedError):
        fields = {_EPOCH: str(error.known_epoch), **({_TWIN: error.twin} if error.twin else {})}
    return _answer(request, ResponseCode.SERVICE_NOT_AVAILABLE, str(error)[:MAX_SHOWN_REFUSAL_CHARS], fields, b"")


def _answer(request: RemotingCommand, code: int, remark: str | None, fields: Mapping[str, str], body: bytes) -> bytes:
    answer = RemotingCommand(
        code, opaque=request.opaque, flag=FLAG_RESPONSE, remark=remark, ext_fields=dict(fields), body=body
    )
    return answer.encode()
