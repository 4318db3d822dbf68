"""Requests of an outbox, fed with answers, failures and time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.blocking.outbox import Outbox, SenderOptions, Sending
from cometmq.errors import CometMQError
from cometmq.message.queues import Queue
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.security import PLAIN

OPTIONS = SenderOptions(PLAIN, 60.0, 10.0, CometMQError, too_large="", too_late="give more time")
QUEUES = [Queue("T", broker, number) for broker in ("a", "b") for number in range(2)]
FAULTS = ("stored", "busy", "stored less safely", "lost before", "lost after")


@dataclass
class Numbers:
    """Messages with these numbers; ``stored`` is what the broker has in the queue."""

    queue: Queue
    numbers: list[int]
    stored: list[int]

    @property
    def size(self) -> int:
        return len(self)

    def __len__(self) -> int:
        return len(self.numbers)

    def frame(self, opaque: int) -> bytes:
        return b"%d" % opaque

    def left(self) -> Numbers | None:
        """The messages that the broker does not find."""
        left = [number for number in self.numbers if number not in self.stored]
        return Numbers(self.queue, left, self.stored) if left else None

    def acknowledged(self, answer: RemotingCommand) -> None:
        assert self.stored[-len(self.numbers) :] == self.numbers


class World:
    """Brokers with a fault for each request, the wire to them, and the time."""

    def __init__(self, faults: list[str]) -> None:
        self.outbox = Outbox(OPTIONS)
        self.stored: dict[Queue, list[int]] = {queue: [] for queue in QUEUES}
        self._faults = iter(faults)
        self._wire: list[Sending] = []
        self.now = 0.0

    def step(self) -> None:
        """Send what is due; then a broker acts, or time passes."""
        for sending in self.outbox.due(self.now):
            left = sending.request.left() if sending.failures else sending.request
            if sending.failures:
                self.outbox.reduce(sending, left)
            if left is not None:
                self.outbox.frame(sending)
                self._wire.append(sending)
        if not self._wire:
            self.now = max(self.now, min((of.due_at for of in self.outbox.sendings.values()), default=self.now))
            return
        sending, fault = self._wire.pop(0), next(self._faults, "stored")
        assert sending.opaque is not None
        request, broker = sending.request, sending.request.queue.broker
        assert isinstance(request, Numbers)
        if fault not in ("busy", "lost before"):
            self.stored[request.queue] += request.numbers
        if fault.startswith("lost"):
            self._wire = [other for other in self._wire if other.request.queue.broker != broker]
            self.outbox.broken(broker, "lost", self.now)
            return
        codes = {"busy": ResponseCode.SYSTEM_BUSY, "stored less safely": ResponseCode.FLUSH_DISK_TIMEOUT}
        answer = RemotingCommand(codes.get(fault, ResponseCode.SUCCESS), opaque=sending.opaque, flag=1)
        self.outbox.answered(broker, answer, self.now)


@given(st.lists(st.sampled_from(FAULTS), max_size=30), st.lists(st.sampled_from(QUEUES), min_size=1, max_size=12))
def test_every_message_is_stored_once_in_the_order_of_its_queue(faults: list[str], targets: list[Queue]) -> None:
    world, sent = World(faults), {queue: list[int]() for queue in QUEUES}
    for number, queue in enumerate(targets):
        while queue in world.outbox.sendings:
            world.step()
        numbers = [2 * number, 2 * number + 1]
        sent[queue] += numbers
        world.outbox.add(Numbers(queue, numbers, world.stored[queue]), world.now)
    while world.outbox.sendings:
        world.step()
    assert world.stored == sent
    assert world.outbox.bytes == 0
    assert world.outbox.delivered.messages == 2 * len(targets)


def test_pauses_double_up_to_five_seconds_and_end_before_the_deadline() -> None:
    world, pauses = World(["busy"] * 100), list[float]()
    world.outbox.add(Numbers(QUEUES[0], [0], []), 0.0)

    def steps() -> None:
        while True:
            before = world.now
            world.step()
            pauses.append(world.now - before)

    with pytest.raises(
        CometMQError, match=r"not acknowledged within 60000 ms; broker a responded with code 2.*give more time"
    ):
        steps()
    assert [round(pause, 2) for pause in pauses if pause][:8] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert 54.0 < world.now <= 60.0
