"""Which messages wait for a time of their own (``HookUtils.handleScheduleMessage``).

TIMER_DELAY_SEC comes before TIMER_DELAY_MS, and that before TIMER_DELIVER_MS; a DELAY level above 0 comes
before all of them. What is due already is stored at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from cometmq.broker.inner_message import InnerMessage
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.send_targets import SendRefusedError
from cometmq.clock import Clock
from cometmq.message.names import TIMER_TOPIC
from cometmq.message.properties import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
)
from cometmq.remoting.codes import ResponseCode

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_LEVEL: Final = re.compile(r"\+?0*[1-9][0-9]*")
"""A DELAY that asks for a level."""
_SHOWN_CHARS: Final = 64


class TimerDetour:
    """Parks messages in ``rmq_sys_wheel_timer``."""

    def __init__(self, live: LiveConfig, *, clock: Clock) -> None:
        self._live = live
        self._clock = clock

    def __call__(self, message: InnerMessage, wanted: Mapping[str, str]) -> InnerMessage | None:
        """The message as it waits; see :data:`~cometmq.broker.inner_message.Detour`.

        :raises SendRefusedError: a delay that is no number or too long, or any delay is switched off.
        """
        name = next((name for name in (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS) if name in wanted), None)
        if name is None or _LEVEL.fullmatch(wanted.get(DELAY, "")) is not None:
            return None
        text = "\x02" + message.properties
        if f"\x02{TIMER_OUT_MS}\x01" in text:
            return None  # it has waited before and is sent on, or again
        config = self._live.current
        if not config.timer_wheel_enable:
            raise SendRefusedError(
                ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
            )
        now_ms = self._clock.now_ms()
        due_ms = _number(name, wanted[name])
        if name == TIMER_DELAY_SEC:
            due_ms = now_ms + due_ms * 1000
        elif name == TIMER_DELAY_MS:
            due_ms += now_ms
        max_ms = config.timer_max_delay_sec * 1000
        is_recall = f"\x02{TIMER_DEL_UNIQKEY}\x01" in text
        if due_ms <= now_ms and not is_recall:
            return None
        if not now_ms < due_ms <= now_ms + max_ms:
            raise SendRefusedError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"timer message illegal, the delay time should not be bigger than the max delay {max_ms}ms; "
                "or if set del msg, the delay time should be bigger than the current time",
            )
        return parked(message, due_ms)


def parked(message: InnerMessage, due_ms: int) -> InnerMessage:
    """The message as it waits for ``due_ms``."""
    tail = f"{REAL_TOPIC}\x01{message.topic}\x02{REAL_QID}\x01{message.queue_id}\x02{TIMER_OUT_MS}\x01{due_ms}"
    text = message.properties.removesuffix("\x02")
    return msgspec.structs.replace(
        message, topic=TIMER_TOPIC, queue_id=0, properties=f"{text}\x02{tail}" if text else tail
    )


def _number(name: str, text: str) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise SendRefusedError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"timer message illegal, {name} is a whole number, not {text[:_SHOWN_CHARS]!r}",
        )
    return int(text)
