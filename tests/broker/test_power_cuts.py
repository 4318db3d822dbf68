"""POP, lite topics and messages of any delay after power cuts at any moment.

With SYNC_FLUSH, each acknowledged message comes, each acknowledgement and recall holds, and nothing comes twice.
Otherwise the same holds for the messages that are still in the log, except that acknowledged ones may come again.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import small_config
from tests.broker.lite import subscribing
from tests.broker.lite.subscribing import PARENT, Reader
from tests.broker.pop.popping import TOPIC, Popper
from tests.broker.power_cut import PowerCuts
from tests.broker.wire import Wire

from cometmq.broker.controller import Broker
from cometmq.message.record import iter_records
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import RecallMessageRequestHeader
from cometmq.testing import VirtualClock

LITES = ["a", "b", "c"]
STEPS = 60
INVISIBLE_S = 1_000


class Promises:
    """The bodies of messages."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        self.waiting: dict[bytes, str] = {}
        """Recall handles of messages that are due later."""
        self.ended: set[bytes] = set()
        """Acknowledged or recalled by a consumer or producer."""
        self.may_be_ended: set[bytes] = set()
        """Those whose end the broker has been asked for."""


class Site:
    """A broker on a directory and its client."""

    def __init__(self, directory: Path, clock: VirtualClock, flush: str, version: int = 0) -> None:
        self.clock = clock
        self.broker = Broker(small_config(directory, flush_disk_type=flush), clock=clock)
        self._version = version

    async def start(self) -> None:
        await self.broker.start()
        self.wire = Wire(*await asyncio.open_connection("127.0.0.1", self.broker.server.port))
        self.reader = Reader(self.wire, self.clock)
        self.reader.version = self._version
        self.popper = Popper(self.wire, self.clock)

    async def stop(self) -> None:
        await self.wire.close()
        await self.broker.stop()

    async def stored(self, topic: str) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        for queue_id in (0, 1) if self.broker.topics.get(topic) is not None else ():
            queue = self.broker.store.queue(topic, queue_id)
            result = self.broker.store.get_message(queue, queue.min_offset(), 1_000)
            found.update(record.body for chunk in result.chunks for record in iter_records(chunk))
        return found


class Load(Site):
    """Sends, receives, acknowledges and recalls at random."""

    def __init__(self, directory: Path, clock: VirtualClock, flush: str, random_: random.Random) -> None:
        super().__init__(directory, clock, flush)
        self.promises = Promises()
        self._random = random_
        self._held: list[Any] = []
        self._count = 0

    async def work(self) -> None:
        await subscribing.make_parent(self.wire)
        await subscribing.make_group(self.wire)
        await self.reader.sync(*LITES)
        steps = [self._send, self._send_lite, self._send_later, self._receive, self._acknowledge, self._recall]
        for _ in range(STEPS):
            await self._random.choice([*steps, self._acknowledge])()
            if self._random.random() < 0.2:
                await self.clock.run_for(self._random.choice((0.5, 3, 12)))

    async def _put(self, topic: str, properties: str) -> Any:
        self._count += 1
        body = b"%s-%d" % (topic.encode(), self._count)
        answer = await self.wire.send(topic, body, properties=f"UNIQ_KEY\x01{body.decode()}\x02{properties}")
        assert answer.code == 0, answer
        self.promises.sent.add(body)
        if "recallHandle" in answer.ext_fields:
            self.promises.waiting[body] = answer.ext_fields["recallHandle"]

    async def _send(self) -> None:
        await self._put(TOPIC, "")

    async def _send_lite(self) -> None:
        await self._put(PARENT, f"__LITE_TOPIC\x01{self._random.choice(LITES)}")

    async def _send_later(self) -> None:
        await self._put("Later", f"TIMER_DELAY_MS\x01{self._random.choice((1, 5_000, 7_200_000, 400_000_000))}")

    async def _receive(self) -> None:
        self._held += await self.reader.pop(max_msg_num=2, invisible_time=INVISIBLE_S * 1_000)
        if self.broker.topics.get(TOPIC) is not None:
            self._held += await self.popper.pop(max_msg_nums=2, invisible_time=INVISIBLE_S * 1_000)

    async def _acknowledge(self) -> None:
        if not self._held:
            return
        message = self._held.pop(self._random.randrange(len(self._held)))
        self.promises.may_be_ended.add(message.body)
        await (self.popper if message.record.topic == TOPIC else self.reader).ack(message)
        self.promises.ended.add(message.body)

    async def _recall(self) -> None:
        if not self.promises.waiting:
            return
        body, handle = self.promises.waiting.popitem()
        self.promises.may_be_ended.add(body)
        header = RecallMessageRequestHeader(topic="Later", recall_handle=handle)
        answer = await self.wire.call(RequestCode.RECALL_MESSAGE, header)
        if answer.code == 0 and not (await self.stored("Later"))[body]:
            self.promises.ended.add(body)


async def came(site: Site) -> Counter[bytes]:
    """What consumers receive, and what falls due."""
    found: Counter[bytes] = Counter()
    for _ in range(2):
        if site.broker.topics.get(PARENT) is not None and site.broker.groups.get(subscribing.GROUP) is not None:
            await site.reader.sync(*LITES)
            while messages := await site.reader.pop():
                found.update(message.body for message in messages)
                await site.reader.ack(*messages)
        while site.broker.topics.get(TOPIC) is not None and (popped := await site.popper.pop()):
            found.update(message.body for message in popped)
            for message in popped:
                await site.popper.ack(message)
        await site.clock.skip(INVISIBLE_S)
    await site.clock.skip(400_000)
    await site.clock.run_for(10)
    return found + await site.stored("Later")


@pytest.mark.parametrize(("flush", "every"), [("SYNC_FLUSH", 80), ("ASYNC_FLUSH", 40)])
async def test_what_was_promised_holds_after_a_power_cut(
    tmp_path: Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture, flush: str, every: int
) -> None:
    random_ = random.Random(flush)
    load = Load(tmp_path / "load", clock, flush, random_)
    store = tmp_path / "load" / "store"
    cuts = PowerCuts(store, tmp_path / "cuts", every, random_, lambda: copy.deepcopy(load.promises))
    with cuts.watching():
        await load.start()
        await load.work()
    await load.stop()
    assert len(cuts.images) > 3
    for directory, promises in cuts.images:
        site = Site(directory, clock, flush, version=1_000)
        await site.start()
        try:
            kept = await site.stored(TOPIC) + await site.stored(PARENT)
            found = await came(site)
        finally:
            await site.stop()
        assert max(found.values(), default=1) == 1, "no message comes twice"
        assert set(kept) - promises.may_be_ended <= set(found)
        if flush == "SYNC_FLUSH":
            assert promises.sent - promises.may_be_ended <= set(found)
            assert not promises.ended & set(found)
    assert not [record for record in caplog.records if record.exc_info]
