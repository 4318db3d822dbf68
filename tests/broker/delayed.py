"""Sending delayed messages and looking at their fate, for the tests of delays and retries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.broker.send.retrying import hand_back
from tests.broker.wire import Wire, records

from cometmq.clock import TimerHandle
from cometmq.message.ids import decode_offset_msg_id
from cometmq.remoting.codes import ResponseCode
from cometmq.testing import VirtualClock


class TurnedBackClock(VirtualClock):
    """A virtual clock whose date can be set back; monotonic time goes on as ever."""

    set_by_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.set_by_ms

    def call_at(self, when_ms: int, callback: Callable[..., object], *args: Any) -> TimerHandle:
        return super().call_at(when_ms - self.set_by_ms, callback, *args)


async def send_delayed(wire: Wire, body: bytes, level: object, topic: str = "Delayed", **fields: object) -> None:
    """Send one message with a delay level; it must be taken."""
    answer = await wire.send(topic, body, properties=f"UNIQ_KEY\x01{body.decode()}\x02DELAY\x01{level}", **fields)
    assert answer.code == ResponseCode.SUCCESS, answer


async def pulled(wire: Wire, topic: str = "Delayed") -> list[bytes]:
    """The bodies that a pull from the beginning gets."""
    return [record.body for record in records(await wire.pull(topic))]


async def send_later(wire: Wire, body: bytes, seconds: float, key: str = "") -> str:
    """Send one message with a delay of its own; return its recall handle."""
    unique = key or body.decode()
    answer = await wire.send(
        "Later", body, properties=f"UNIQ_KEY\x01{unique}\x02TIMER_DELAY_MS\x01{seconds * 1000:.0f}"
    )
    assert answer.code == 0
    return answer.ext_fields["recallHandle"]


async def fail_once(wire: Wire, body: bytes) -> None:
    """Send a message and hand it back as a failed one, to come again after the first level."""
    _, _, offset = decode_offset_msg_id((await wire.send("Failing", body)).ext_fields["msgId"])
    assert (await hand_back(wire, offset, delay_level=1)).code == 0
