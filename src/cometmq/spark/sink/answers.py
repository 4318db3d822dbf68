"""What brokers answer to sends of a job: which answers leave it open what became of the messages, and what to do."""

from __future__ import annotations

from typing import Final

from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.denials import denial_step

UNSURE: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
"""Not stored, or not as safely as the broker is set to store: worth another try after a look."""
_ADVICE: Final[dict[int, str]] = {
    ResponseCode.NO_PERMISSION: "the topic or its broker does not allow writing: see cometmq topic list",
    ResponseCode.TOPIC_NOT_EXIST: "create the topic on this broker: cometmq topic create",
    ResponseCode.PRODUCER_FENCED: "another attempt of this task has taken over, which goes on with it",
    ResponseCode.SEQUENCE_GAP: "the broker lost messages that it had acknowledged; the repeated task sends them again",
    ResponseCode.SEQUENCE_MISMATCH: "the rows of a repeated task must be the same, in the same order",
}


def told(answer: RemotingCommand) -> str:
    """What a broker has answered, for people."""
    return f"code {answer.code}: {answer.remark or 'no remark'}"


def next_step(answer: RemotingCommand, *, too_large: str) -> str | None:
    """What to do about messages that a broker refuses.

    :param too_large: what to do where it takes a message for too large.
    """
    if answer.code == ResponseCode.MESSAGE_ILLEGAL:
        return too_large
    return denial_step(answer.code, answer.remark) or _ADVICE.get(answer.code)
