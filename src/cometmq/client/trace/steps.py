"""The recorded steps of a message in chronological order: sends, transaction outcomes and consumptions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from cometmq.client.trace.reader import MessageWay
from cometmq.message.properties import MessageType

_RESULTS: Final = ("ok", "timed out", "raised", "returned null", "failed")
"""Results of a consumption, indexed by the context code in a SubAfter record."""


@dataclass(frozen=True, kw_only=True)
class TraceStep:
    """A recorded step of a message; fields that were not recorded are ``None``."""

    time_ms: int | None
    after_ms: int | None = None
    """Time in milliseconds since the first step."""
    step: str
    """``sent``, ``checked``, ``ended`` or ``consumed``."""
    group: str
    client: str
    broker: str | None = None
    attempt: int | None = None
    """Number of the attempt, starting at 1."""
    took_ms: int | None = None
    result: str
    topic: str | None = None
    msg_type: str | None = None
    offset_msg_id: str | None = None


def steps_of(way: MessageWay) -> list[TraceStep]:
    """Return a message's steps in chronological order."""
    steps = [
        TraceStep(
            time_ms=sent.time_ms,
            step="sent",
            group=sent.group,
            client=host,
            broker=sent.store_host,
            took_ms=sent.cost_ms,
            result="ok" if sent.success else "stored, not safely",
            topic=sent.topic,
            msg_type=_type_name(sent.msg_type),
            offset_msg_id=sent.offset_msg_id,
        )
        for sent, host in way.sends
    ]
    steps += [
        TraceStep(
            time_ms=ended.time_ms,
            step="checked" if ended.from_transaction_check else "ended",
            group=ended.group,
            client=host,
            broker=ended.store_host,
            result=ended.transaction_state,
            topic=ended.topic,
            msg_type=_type_name(ended.msg_type),
        )
        for ended, host in way.transaction_ends
    ]
    steps += [
        TraceStep(
            time_ms=call.begun_at_ms,
            step="consumed",
            group=call.group,
            client=call.client_host,
            attempt=None if call.retry_times is None else call.retry_times + 1,
            took_ms=call.cost_ms,
            result=_result(call.context_code),
        )
        for call in way.consumptions
    ]
    steps.sort(key=lambda step: (step.time_ms is None, step.time_ms or 0))
    first = next((step.time_ms for step in steps if step.time_ms is not None), 0)
    return [step if step.time_ms is None else replace(step, after_ms=step.time_ms - first) for step in steps]


def _type_name(number: int) -> str:
    try:
        return str(MessageType(number).name)
    except ValueError:
        return str(number)


def _result(code: int | None) -> str:
    if code is None:
        return "running, or its end was not traced"
    return _RESULTS[code] if 0 <= code < len(_RESULTS) else f"code {code}"
