"""A request behind a slow write waits for it and is served; Apache's broker refuses it: ``[REJECTREQUEST]``, code 2."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.broker.conftest import ConnectTo, small_config
from tests.broker.wire import send_header
from tests.helpers.apache_keys import keys_without_effect
from tests.helpers.contents import bodies

from cometmq.apache_keys import BROKER
from cometmq.broker.config import BrokerConfig
from cometmq.broker.controller import Broker
from cometmq.remoting.codes import RequestCode
from cometmq.store.disk import Disk
from cometmq.testing import VirtualClock


class BusyClock(VirtualClock):
    """Moves also by the time that work takes, during which no timer fires."""

    def __init__(self) -> None:
        super().__init__()
        self.worked_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.worked_s

    def now_ms(self) -> int:
        return super().now_ms() + int(self.worked_s * 1000)


class SlowDisk(Disk):
    """Each write takes five seconds."""

    def __init__(self, clock: BusyClock) -> None:
        self._clock = clock

    def write(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
        self._clock.worked_s += 5
        super().write(fd, data, at)


async def test_no_send_is_refused_because_a_write_before_it_took_long(tmp_path: Path, connect_to: ConnectTo) -> None:
    clock = BusyClock()
    disk = SlowDisk(clock)
    broker = Broker(small_config(tmp_path), clock=clock, disk=disk)
    await broker.start()
    try:
        wires = [await connect_to(broker) for _ in range(3)]
        for round_ in range(3):
            commands = [
                wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T", queue_id=0), b"%d" % round_)
                for wire in wires
            ]
            for wire, command in zip(wires, commands, strict=True):
                wire.post(command)
            answers = await asyncio.gather(
                *(wire.answer(command.opaque) for wire, command in zip(wires, commands, strict=True))
            )
            assert [answer.code for answer in answers] == [0, 0, 0]
            assert clock.worked_s >= 5 * (round_ + 1), "the writes are those of the sends"
        assert bodies(broker, "T") == [b"0"] * 3 + [b"1"] * 3 + [b"2"] * 3
    finally:
        await broker.stop()


def test_the_keys_about_it_are_taken_without_effect() -> None:
    assert keys_without_effect(BrokerConfig, BROKER).keys() >= {
        "brokerFastFailureEnable",
        "osPageCacheBusyTimeOutMills",
        "transientStorePoolEnable",
        "waitTimeMillsInSendQueue",
    }
