"""Whoever dies at whichever step of a write: nothing is lost, and where it is promised nothing is there twice.

For the broker a task that is killed, its executor and its driver are one: an attempt that goes no further, and another
one by a new process. So attempts end here at named steps, in this process; that Spark makes the next one is tested in
``test_sink.py`` and ``test_standalone.py``, where processes are killed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.spark.sinking import rows_of, sink, stored
from tests.spark.topics import Topics

from cometmq.spark.sink.delivery import Delivery
from cometmq.testing import SyncCluster

pytestmark = pytest.mark.crash

QUEUES = 3
ROWS = 900
GUARANTEES = ["at-least-once", "effectively-once", "exactly-once"]


class Step(NamedTuple):
    """A place in the life of a task: before or after a call of a method of its :class:`Delivery`."""

    when: str
    method: str
    call: int = 1


STEPS = {
    "before the first chunk": Step("before", "submit"),
    "before a chunk is sent": Step("before", "_send_due", QUEUES + 2),
    "sent, not acknowledged": Step("after", "_send_due", QUEUES + 2),
    "between two chunks": Step("before", "submit", 8),
    "acknowledged, others under way": Step("after", "_receive", 2),
    "all sent, not all acknowledged": Step("before", "finish"),
    "all acknowledged, not committed": Step("after", "finish"),
}


class DiedError(Exception):
    """The task was killed."""


@contextmanager
def at(step: Step, act: Callable[[], object]) -> Iterator[None]:
    """Do something at that step, once."""
    calls = itertools.count(1)
    method = getattr(Delivery, step.method)

    def hooked(delivery: Delivery, *given: Any) -> Any:
        here = next(calls) == step.call
        if here and step.when == "before":
            act()
        done = method(delivery, *given)
        if here and step.when == "after":
            act()
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Delivery, step.method, hooked)
        yield
    assert next(calls) > step.call, "it never came so far"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncCluster]:
    with SyncCluster(data=Path(tmp_path_factory.mktemp("kills"))) as running:
        yield running


@pytest.fixture(scope="module")
def broker(cluster: SyncCluster) -> Topics:
    topics = Topics(cluster.namesrv_address, cluster.run(lambda running: running.broker(0).address))
    topics.broker_name = "broker-0"
    return topics


class Write:
    """One micro-batch after the other, of two tasks each, into a topic of its own."""

    def __init__(self, topics: Topics, guarantee: str) -> None:
        self.topics = topics
        self.topic = topics.create(queues=QUEUES)
        self.guarantee = guarantee

    def task(self, partition: int, batch: int = 0) -> None:
        """Run it."""
        first = (2 * batch + partition) * ROWS
        rows = [{"body": b"%06d" % number, "queueId": number % QUEUES} for number in range(first, first + ROWS)]
        options = {"deliveryGuarantee": self.guarantee, "maxBatchBytes": 5000}
        sink(self.topics, self.topic, [rows_of(rows)], partition, job=self.topic, batch=batch, **options)

    def demand_all(self, batches: int) -> None:
        """Every row is there; once, and in the order of its task, if that is promised."""
        queues = [[int(of.body) for of in records] for records in stored(self.topics, self.topic, QUEUES)]
        found = sorted(itertools.chain(*queues))
        everything = list(range(2 * batches * ROWS))
        if self.guarantee == "at-least-once":
            assert sorted(set(found)) == everything
        else:
            assert found == everything
            assert all(queue == sorted(queue) for queue in queues)


def die() -> None:
    raise DiedError


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("step", STEPS)
def test_an_attempt_that_ends_at_a_step_is_made_up_for(broker: Topics, step: str, guarantee: str) -> None:
    """Twice at the same step; then the micro-batch is repeated, with the task that had committed."""
    write = Write(broker, guarantee)
    write.task(0)
    for _ in range(2):
        with at(STEPS[step], die), pytest.raises(DiedError):
            write.task(1)
    for batch in range(2):
        for partition in range(2):
            write.task(partition, batch)
    write.demand_all(2)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_micro_batch_all_of_whose_tasks_have_committed_can_be_repeated(broker: Topics, guarantee: str) -> None:
    """The driver dies before it has noted the end of the epoch."""
    write = Write(broker, guarantee)
    for _, partition in itertools.product(range(2), range(2)):
        write.task(partition)
    write.demand_all(1)


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("step", STEPS)
def test_a_broker_that_is_killed_at_a_step_is_waited_for(
    cluster: SyncCluster, broker: Topics, step: str, guarantee: str
) -> None:
    def kill() -> None:
        cluster.kill_broker(0)
        cluster.start_broker(0)

    write = Write(broker, guarantee)
    write.task(0)
    with at(STEPS[step], kill):
        write.task(1)
    write.demand_all(1)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_broker_that_is_killed_between_two_commits_or_epochs(
    cluster: SyncCluster, broker: Topics, guarantee: str
) -> None:
    """It knows what the tasks had stored, when they are repeated and when they go on."""
    write = Write(broker, guarantee)
    for partition in (0, 1):
        write.task(partition)
        cluster.kill_broker(0)
        cluster.start_broker(0)
    write.task(1)
    for partition in (0, 1):
        write.task(partition, batch=1)
    write.demand_all(2)
