"""A state machine: lite topics of a shared, an exclusive and a wildcard group, against a model.

It sends messages with and without life times, subscribes, pops, acknowledges, changes times, removes idle lite topics,
deletes the parent topic, writes the snapshot, stops and crashes at any step. The model has, for each group and lite
topic, the messages that the group must still receive, in order. A pop must return exactly the first of them, and miss
none that is not locked.
"""

from __future__ import annotations

import asyncio
import math
from itertools import groupby

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from tests.broker.lite.subscribing import PARENT, Got, Reader, bodies, expire, got, make_group, make_parent
from tests.broker.machine import BrokerMachine
from tests.broker.wire import Wire, records

import cometmq.broker.lite.subscriptions
from cometmq.broker.lite.name_table import NO_NAME
from cometmq.message.properties import LITE_TOPIC
from cometmq.remoting.codes import RequestCode
from cometmq.testing import VirtualClock

GROUP_OF = {"c1": "shared", "c2": "shared", "e1": "sole", "e2": "sole", "w": "wild"}
GROUPS = {"shared": {}, "sole": {"model": "Exclusive"}, "wild": {"wildcard": "true"}}
MOST_RETRIES = 2
LITES = ["a", "b", "c"]
CLIENTS = st.sampled_from(sorted(GROUP_OF))
TIMES_MS = st.sampled_from([0, 1, 50, 1_000, 30_000])
LIVES_MS = st.sampled_from([0, 0, 0, 40, 1_000, 20_000])
ATTEMPTS = st.sampled_from(["", "", "one", "two"])
IDLE_S = 7_200


class Model:
    """A message that a group must still receive or acknowledge."""

    def __init__(self, body: bytes, offset: int, end: float) -> None:
        self.body = body
        self.offset = offset
        self.end = end
        self.times = -1
        self.due = 0
        self.attempt = ""
        self.got: Got | None = None

    def locks(self, now_ms: int, attempt: str) -> bool:
        return self.got is not None and self.due > now_ms and not (attempt and attempt == self.attempt)

    def is_dying(self, now_ms: int) -> bool:
        """Whether it ends as a dead letter if it is the first one."""
        return self.times >= MOST_RETRIES and self.due <= now_ms

    def is_over(self, now_ms: int) -> bool:
        """Whether its life has ended, and no consumer has it."""
        return self.end <= now_ms and (self.got is None or self.due <= now_ms)


def is_open(left: list[Model], now_ms: int, attempt: str) -> bool:
    """Whether a pop may return messages of a lite topic: none is locked, and none must be ended first."""
    handed = [model for model in left if model.got]
    ends = any(model.is_over(now_ms) for model in [*handed, *left[:1]]) or any(m.is_dying(now_ms) for m in left[:1])
    return not ends and not any(model.locks(now_ms, attempt) for model in left)


class LiteMachine(BrokerMachine):
    """One parent topic of two queues, three lite topics, three groups."""

    def __init__(self) -> None:
        super().__init__(VirtualClock())
        self.wire: Wire | None = None
        self.left: dict[tuple[str, str], list[Model]] = {(g, lite): [] for g in GROUPS for lite in LITES}
        self.has_read: set[tuple[str, str]] = set()
        self.lites: dict[str, set[str]] = {client: set() for client in GROUP_OF}
        self.versions = dict.fromkeys(GROUP_OF, 0)
        self.old: list[tuple[str, Got]] = []
        self.dead: dict[str, list[bytes]] = {group: [] for group in GROUPS}
        self.may_be_dead: dict[str, list[bytes]] = {group: [] for group in GROUPS}
        """Messages that died at about the end of their lives."""
        self.number = 0

    async def connected(self) -> Wire:
        if self.wire is None:
            self.wire = Wire(*await asyncio.open_connection("127.0.0.1", self.running.server.port))
        return self.wire

    async def reader(self, client: str) -> Reader:
        return Reader(await self.connected(), self.clock, client, GROUP_OF[client])

    async def leave(self) -> None:
        if self.wire is not None:
            await self.wire.close()
            self.wire = None

    @initialize()
    def begin(self) -> None:
        super().begin()

        async def work() -> None:
            wire = await self.connected()
            await make_parent(wire, attributes="+message.type=LITE,+lite.topic.expiration=60")
            for group, attributes in GROUPS.items():
                await make_group(wire, group, **attributes)
            await self.sync("w")

        self.run(work())

    # --- subscriptions --------------------------------------------------------------------------
    async def sync(self, client: str) -> None:
        reader = await self.reader(client)
        self.versions[client] += 1
        names = () if client == "w" else sorted(self.lites[client])
        answer = await reader.control("COMPLETE_ADD", *names, version=self.versions[client])
        assert answer.code == 0, answer
        if client == "w":
            self.lites["w"] = set(LITES)

    def takes(self, client: str, lites: set[str]) -> None:
        """In an exclusive group, the other client loses the lite topics that this one adds."""
        if GROUP_OF[client] == "sole":
            self.lites["e1" if client == "e2" else "e2"] -= lites - self.lites[client]

    @rule(client=st.sampled_from(["c1", "c2", "e1", "e2"]), lites=st.sets(st.sampled_from(LITES)))
    def subscribe(self, client: str, lites: set[str]) -> None:
        if GROUP_OF[client] == "sole":  # what it lost it would get only by a partial addition
            other = self.lites["e1" if client == "e2" else "e2"]
            lites = self.lites[client] & lites | lites - other
        self.lites[client] = lites
        self.run(self.sync(client))

    @rule(client=st.sampled_from(["c1", "c2", "e1", "e2"]), lite=st.sampled_from(LITES), adds=st.booleans())
    def subscribe_to_one(self, client: str, lite: str, adds: bool) -> None:
        async def work() -> None:
            action = "PARTIAL_ADD" if adds else "PARTIAL_REMOVE"
            answer = await (await self.reader(client)).control(action, lite, version=self.versions[client])
            assert answer.code == 0, answer

        self.run(work())
        if adds:
            self.takes(client, {lite})
            self.lites[client] = self.lites[client] | {lite}
        else:
            self.lites[client] = self.lites[client] - {lite}

    # --- messages -------------------------------------------------------------------------------
    async def put(self, lite: str, count: int, queue_id: int, ttl_ms: int = 0) -> None:
        wire = await self.connected()
        for _ in range(count):
            body = b"%d" % self.number
            self.number += 1
            life = f"\x02COMETMQ_TTL_MS\x01{ttl_ms}" if ttl_ms else ""
            answer = await wire.send(PARENT, body, properties=f"{LITE_TOPIC}\x01{lite}{life}", queue_id=queue_id)
            assert answer.code == 0, answer
            index = self.running.lite.indexes.of(PARENT)
            offset = index.next_offset(index.find(lite)) - 1
            for group in GROUPS:
                end = self.clock.now_ms() + ttl_ms if ttl_ms else math.inf
                self.left[group, lite].append(Model(body, offset, end))

    @rule(lite=st.sampled_from(LITES), count=st.integers(1, 3), queue_id=st.integers(0, 1), ttl_ms=LIVES_MS)
    def send(self, lite: str, count: int, queue_id: int, ttl_ms: int) -> None:
        self.run(self.put(lite, count, queue_id, ttl_ms))

    @rule(client=CLIENTS, most=st.sampled_from([1, 2, 32]), invisible_ms=TIMES_MS, attempt=ATTEMPTS)
    def pop(self, client: str, most: int, invisible_ms: int, attempt: str) -> None:
        async def work() -> None:
            await self.popped(client, most, invisible_ms, attempt)

        self.run(work())

    async def popped(self, client: str, most: int, invisible_ms: int, attempt: str = "") -> list[Model]:
        await self.resolved()
        reader = await self.reader(client)
        found = await reader.pop(max_msg_num=most, invisible_time=invisible_ms, attempt_id=attempt or None)
        models = self.received(client, found, invisible_ms, attempt)
        if len(found) < most:
            now_ms, group = self.clock.now_ms(), GROUP_OF[client]
            for lite in self.lites[client] - {message.lite for message in found}:
                assert not self.may_come(group, lite, now_ms), f"{client} misses {lite}"
        await self.resolved()
        return models

    def may_come(self, group: str, lite: str, now_ms: int) -> bool:
        left = self.left[group, lite]
        return bool(left) and is_open(left, now_ms, "")

    def received(self, client: str, found: list[Got], invisible_ms: int, attempt: str) -> list[Model]:
        now_ms, group = self.clock.now_ms(), GROUP_OF[client]
        models: list[Model] = []
        for lite, some in groupby(found, lambda message: message.lite):
            messages = list(some)
            assert lite in self.lites[client], f"{client} does not read {lite}"
            left = self.left[group, lite]
            assert is_open(left, now_ms, attempt), f"{lite} is locked"
            assert bodies(messages) == [model.body for model in left[: len(messages)]], f"the order in {lite}"
            self.has_read.add((group, lite))
            for model, message in zip(left, messages, strict=False):
                assert not model.is_over(now_ms), f"the life of {message} has ended"
                again = bool(attempt) and model.attempt == attempt
                counts = model.got is not None and model is left[0] and not again
                assert message.times == max(model.times + counts, 0), f"deliveries of {message}"
                if model.got is not None:
                    self.old.append((client, model.got))
                model.times, model.got, model.attempt = message.times, message, attempt
                model.due = message.handle.pop_time + invisible_ms
                models.append(model)
        assert len(models) == len(found)
        return models

    async def resolved(self) -> None:
        """Let the broker bury what has died; a lite topic is looked at when its lock ends, or at the next pop."""
        await self.clock.skip(0)
        now_ms = self.clock.now_ms()
        index = self.running.lite.indexes.of(PARENT)
        for (group, lite), left in self.left.items():
            progress = self.running.lite.progress.find(PARENT, group)
            flight = None if progress is None else progress.flights.get(index.find(lite))
            first = left[0] if left else None
            for model in [model for model in left if model.is_over(now_ms) or model is first]:
                is_dying = model is first and model.is_dying(now_ms)
                if not (is_dying or model.is_over(now_ms)):
                    continue
                if model.got is None:
                    is_gone = progress is not None and progress.next_offset(index.find(lite)) > model.offset
                else:
                    is_gone = flight is None or model.offset not in flight.messages
                if is_gone:
                    left.remove(model)
                    if is_dying:
                        (self.may_be_dead if model.is_over(now_ms) else self.dead)[group].append(model.body)
            if left and left[0] is not first and left[0].got is not None:
                left[0].times = max(left[0].times - 1, -1)  # the first one has just ended, and this one not begun

    def handed_out(self) -> list[tuple[str, str, Model]]:
        return [(group, lite, model) for (group, lite), left in self.left.items() for model in left if model.got]

    @precondition(lambda self: self.handed_out())
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        async def work() -> None:
            await self.resolved()
            handed = self.handed_out()
            if handed:
                await self.acked(*data.draw(st.sampled_from(handed)))

        self.run(work())

    async def acked(self, group: str, lite: str, model: Model) -> None:
        client = next(client for client in GROUP_OF if GROUP_OF[client] == group)
        assert model.got is not None
        await (await self.reader(client)).ack(model.got)
        self.left[group, lite].remove(model)

    @precondition(lambda self: self.handed_out())
    @rule(data=st.data(), invisible_ms=TIMES_MS)
    def change(self, data: st.DataObject, invisible_ms: int) -> None:
        async def work() -> None:
            await self.resolved()
            handed = self.handed_out()
            if not handed:
                return
            group, _, model = data.draw(st.sampled_from(handed))
            client = next(client for client in GROUP_OF if GROUP_OF[client] == group)
            assert model.got is not None
            await (await self.reader(client)).change(model.got, invisible_ms)
            model.due = self.clock.now_ms() + invisible_ms
            await self.resolved()

        self.run(work())

    @precondition(lambda self: self.old)
    @rule(data=st.data(), changes=st.booleans())
    def use_an_old_handle(self, data: st.DataObject, changes: bool) -> None:
        client, message = data.draw(st.sampled_from(self.old))

        async def work() -> None:
            reader = await self.reader(client)
            await (reader.change(message, 0) if changes else reader.ack(message))

        self.run(work())

    @rule(client=CLIENTS, lite=st.sampled_from(LITES))
    def wait_for_a_message(self, client: str, lite: str) -> None:
        """A pop that waits is answered by a message, and by nothing else."""

        async def work() -> None:
            await self.resolved()
            group, now_ms = GROUP_OF[client], self.clock.now_ms()
            left = self.left[group, lite]
            is_locked = bool(left) and not is_open(left, now_ms, "")
            if lite not in self.lites[client] or is_locked or await self.popped(client, 32, 1_000):
                return
            reader = await self.reader(client)
            waiting = reader.command(poll_time=15_000, invisible_time=1_000)
            reader.wire.post(waiting)
            await self.put(lite, 1, 0)
            assert self.received(client, got(await reader.wire.answer(waiting.opaque)), 1_000, "")

        self.run(work())

    @rule(ms=st.sampled_from([1, 49, 1_000, 31_000]))
    def move_clock(self, ms: int) -> None:
        async def work() -> None:
            await self.clock.skip(ms / 1000)
            await self.resolved()

        self.run(work())

    # --- the broker -----------------------------------------------------------------------------
    @rule()
    def save(self) -> None:
        self.run(self.running.lite.save())

    @rule(reads=st.booleans())
    def expire(self, reads: bool) -> None:
        """Remove idle lite topics: only those that the groups which read them have read to the end."""

        async def work() -> None:
            if reads:
                await self.all_read()
            await self.clock.skip(IDLE_S)
            await self.resolved()
            await expire(self.running)

        self.run(work())
        index = self.running.lite.indexes.of(PARENT)
        for (group, lite), left in self.left.items():
            if index.find(lite) == NO_NAME:
                assert not left or (group, lite) not in self.has_read, f"{group} has not read all of {lite}"
                left.clear()
                self.has_read.discard((group, lite))
        self.old = [(client, message) for client, message in self.old if index.find(message.lite) != NO_NAME]

    @rule()
    def delete_the_parent_topic(self) -> None:
        async def work() -> None:
            wire = await self.connected()
            assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": PARENT})).code == 0
            await make_parent(wire, attributes="+message.type=LITE,+lite.topic.expiration=60")
            for left in self.left.values():
                left.clear()
            self.has_read.clear()
            self.old.clear()
            for client in GROUP_OF:
                self.lites[client] = set()
            await self.sync("w")

        self.run(work())

    @rule()
    def crash(self) -> None:
        super().crash()

        async def work() -> None:
            for client in GROUP_OF:
                await self.sync(client)  # a client repeats its subscription every 30 s
            await self.resolved()

        self.run(work())

    def teardown(self) -> None:
        """In the end, each group receives what is left, and the dead letters are those that died."""

        async def rest() -> None:
            await self.all_read()
            for group, dead in self.dead.items():
                letters = await self.dead_letters(group)
                assert len(letters) == len(set(letters))
                assert set(dead) <= set(letters) <= {*dead, *self.may_be_dead[group]}

        if self.broker is not None:
            self.run(rest())
        super().teardown()

    async def all_read(self) -> None:
        """Each group receives and acknowledges all that is left; then only the wildcard client subscribes."""
        await self.clock.skip(31)
        self.lites |= {"c1": set(LITES), "c2": set(), "e1": set(LITES), "e2": set()}
        for client in ("e2", "e1", "c2", "c1", "w"):
            await self.sync(client)
        for client in ("c1", "e1", "w"):
            group = GROUP_OF[client]
            for _ in range(20 + sum(len(self.left[group, lite]) for lite in LITES)):
                models = await self.popped(client, 32, 60_000)
                for lite in LITES:
                    for model in [model for model in models if model in self.left[group, lite]]:
                        await self.acked(group, lite, model)
            assert not any(self.left[group, lite] for lite in LITES), f"{group} does not receive all"
        self.lites |= {"c1": set(), "e1": set()}
        for client in ("c1", "e1"):
            await self.sync(client)

    async def dead_letters(self, group: str) -> list[bytes]:
        wire = await self.connected()
        found: list[bytes] = []
        while self.running.topics.get(f"%DLQ%{group}"):
            some = records(await wire.pull(f"%DLQ%{group}", queue_offset=len(found)))
            if not some:
                break
            found += [record.body for record in some]
        return found


LiteMachine.TestCase.settings = settings(
    max_examples=15, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLiteTopics = LiteMachine.TestCase


class CrowdsMachine(LiteMachine):
    """The same with clients that share what is ready, as many clients of one lite topic do."""

    @initialize()
    def begin(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(cometmq.broker.lite.subscriptions, "_FEW", 0)
        super().begin()

    def teardown(self) -> None:
        self.patch.undo()
        super().teardown()


CrowdsMachine.TestCase.settings = LiteMachine.TestCase.settings
TestCrowds = CrowdsMachine.TestCase
