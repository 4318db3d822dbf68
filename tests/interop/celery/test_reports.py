"""What users of Celery have reported about brokers, as programs: none of it holds with CometMQ.

The numbers are of issues of ``celery/celery`` unless a project is named.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers.load import Family
from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError
from tests.helpers.waiting import block_for
from tests.integrations.kombu.workers import close_with_results
from tests.interop.celery.brokers import Broker, CometMQ, started
from tests.interop.celery.reports import Stage, staged
from tests.interop.celery.workers import working

from cometmq.client.sync import SyncAdmin

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("default")]

UNSEEN_S = 3.0
"""A task of a worker that has gone comes again after so long, in the tests that wait for it."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with started("cometmq", tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def stage(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A stage with a worker of two processes, for tests that leave nothing behind."""
    directory = tmp_path_factory.mktemp("stage")
    with staged(broker, directory, "shared", result_backend="rpc://") as ready, ready.working(concurrency=2):
        yield ready


def test_a_task_with_a_time_runs_once_though_the_time_is_beyond_that_of_dead_workers(
    broker: Broker, tmp_path: Path
) -> None:
    """#2541, #2599, #3270, kombu#337: the worker held it until its time, and it came again and again."""
    with staged(broker, tmp_path, "eta", unseen_s=UNSEEN_S) as stage, stage.working() as worker:
        due = time.time() + 2.5 * UNSEEN_S
        stage.send("begin", 1, eta=datetime.fromtimestamp(due, UTC))
        stage.send("begin", 2)
        stage.wait(lambda: stage.begun() == [2], "the task without a time begins")
        scheduled = stage.app.control.inspect(timeout=2).scheduled()
        assert scheduled is not None
        assert not any(scheduled.values()), "the worker holds the task"
        stage.wait(lambda: 1 in stage.begun(), "the task with a time begins")
        assert 0 <= time.time() - due < 3
        block_for(0.5)
        assert stage.begun() == [2, 1]
        assert worker.running


def test_tasks_longer_than_the_time_of_dead_workers_run_once(broker: Broker, tmp_path: Path) -> None:
    """alphagov/notifications-api#3426, #7651: also a task that was read ahead and waits for its turn."""
    with staged(broker, tmp_path, "long", unseen_s=UNSEEN_S) as stage, stage.working():
        for number in (1, 2):
            stage.send("work", number, 1.5 * UNSEEN_S)
        stage.wait(lambda: len(stage.ended()) >= 2, "both end", 6 * UNSEEN_S)
        block_for(1.0)
        assert sorted(stage.begun()) == [1, 2]


def test_a_worker_reads_no_more_than_it_may(broker: Broker, tmp_path: Path) -> None:
    """#1718, saleor/saleor#16507: short tasks waited in a worker that was busy with a long one."""
    with staged(broker, tmp_path, "prefetch", worker_prefetch_multiplier=1) as stage, stage.working() as first:
        stage.send("work", 0, 6.0)
        stage.wait(lambda: stage.begun() == [0], "the long task begins")
        for number in range(1, 7):
            stage.send("begin", number)
        used = Family(first.pid).cpu_seconds()
        block_for(1.0)
        assert Family(first.pid).cpu_seconds() - used < 0.3, "a worker that may not read asks all the time (#3712)"
        with stage.working():
            stage.wait(lambda: sorted(stage.begun()) == list(range(7)), "the second worker takes the short ones", 5.0)
            assert stage.ended() == []
            stage.wait(lambda: stage.ended() == [0], "the long task ends")
        assert sorted(stage.begun()) == list(range(7))


def test_a_warm_shutdown_ends_what_runs_and_gives_back_the_rest_at_once(broker: Broker, tmp_path: Path) -> None:
    """#3802, #4002, #4354: what ended meanwhile came again, and what waited was lost or came twice."""
    with staged(broker, tmp_path, "warm", unseen_s=60.0) as stage:
        with working(stage.worker()) as first:
            for number in range(4):
                stage.send("work", number, 2.0 if number == 0 else 0.0)
            stage.wait(lambda: stage.begun() == [0], "the first begins")
            first.stop()
        assert stage.ended() == [0]
        with stage.working():
            stage.wait(lambda: sorted(stage.ended()) == [0, 1, 2, 3], "the rest ends", 10.0)
        assert sorted(stage.begun()) == [0, 1, 2, 3]


def test_a_killed_process_of_the_pool_loses_no_task(broker: Broker, tmp_path: Path) -> None:
    """#1628, #2011, #3057: the task was acknowledged, or the worker hung."""
    with staged(broker, tmp_path, "killed") as stage, stage.working(concurrency=2) as worker:
        stage.send("die_once", 1)
        stage.send("begin", 2)
        stage.wait(lambda: stage.ended() == [1], "the task of the killed process ends", 15.0)
        assert stage.begun().count(1) == 2
        stage.send("work", 3, 60.0, time_limit=1)  # the pool kills the process; that is the end of this task
        stage.wait(lambda: 3 in stage.begun(), "the task without an end begins")
        block_for(2.0)
        stage.send("begin", 4)
        stage.wait(lambda: 4 in stage.begun(), "the worker goes on")
        assert stage.begun().count(3) == 1
        assert worker.running


def test_processes_of_the_pool_that_end_after_each_task_disturb_nothing(broker: Broker, tmp_path: Path) -> None:
    """#3760, #5299: the worker lost its connection, or was busy with nothing, when children were replaced."""
    options = ("--max-tasks-per-child", "1")
    with staged(broker, tmp_path, "short") as stage, stage.working(concurrency=2, options=options) as worker:
        for number in range(12):
            stage.send("begin", number)
        stage.wait(lambda: len(stage.begun()) >= 12, "all begin")
        stage.wait(lambda: len(worker.children()) >= 2, "the last processes are replaced")
        used = Family(worker.pid).cpu_seconds()
        block_for(1.0)
        assert Family(worker.pid).cpu_seconds() - used < 0.5
        assert sorted(stage.begun()) == list(range(12))
        assert "onnection to broker lost" not in worker.tail()


def test_every_ping_is_answered_and_leaves_nothing(stage: Stage) -> None:
    """#2117, #2678, #6089, kombu#294: the second was not answered, and queues for replies stayed for ever."""
    assert stage.ping()
    before = _stored(stage.broker)
    for _ in range(10):
        assert len(stage.ping()) == 1
    for _ in range(5):  # another process would be another application
        app = Celery("another", set_as_current=False)
        app.conf.update(stage.settings)
        assert app.control.inspect(timeout=2).ping()
        app.close()
    assert _stored(stage.broker) == before


def test_an_asker_that_has_gone_does_no_harm(stage: Stage) -> None:
    """kombu#1063: the worker could not route its reply, and its remote control ended."""
    for _ in range(5):
        app = Celery("gone", set_as_current=False)
        app.conf.update(stage.settings)
        app.control.broadcast("ping", reply=True, timeout=0.001)
        app.close()
    assert stage.ping()
    log = (stage.directory / "worker-1.log").read_text()
    assert "ontrol command error" not in log
    assert "Traceback" not in log


def test_a_task_that_waits_for_its_time_can_be_revoked(stage: Stage) -> None:
    """#4300, mher/flower#608: it ran in spite of that."""
    due = datetime.now(UTC) + timedelta(seconds=4)  # on a busy machine the revocation takes a while
    revoked = stage.send("begin", 100, eta=due)
    stage.app.control.revoke(revoked)
    stage.send("begin", 101, eta=due + timedelta(seconds=0.5))
    stage.wait(lambda: 101 in stage.begun(), "the later task begins")
    assert 100 not in stage.begun()


def test_threads_can_send_with_one_application(stage: Stage) -> None:
    """#4457: what threads sent at the same time mixed."""
    threads = [
        threading.Thread(target=lambda first=first: [stage.send("begin", first + n) for n in range(10)])
        for first in range(200, 280, 10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = set(range(200, 280))
    stage.wait(lambda: wanted <= set(stage.begun()), "all begin")
    assert len([number for number in stage.begun() if number in wanted]) == len(wanted)


def test_a_large_argument_arrives_and_one_that_is_too_large_is_refused(stage: Stage) -> None:
    """SQS took 256 KB, and a producer that sent more tried again for ever."""
    stage.send("with_text", 300, "x" * 2_000_000)
    stage.wait(lambda: 300 in stage.begun(), "the large task begins")
    began = time.monotonic()
    with pytest.raises(Exception, match=r"(?i)large|size|bytes"):
        stage.send("with_text", 301, "x" * 20_000_000)
    assert time.monotonic() - began < 10
    stage.send("begin", 302)
    stage.wait(lambda: 302 in stage.begun(), "the producer goes on")


@pytest.mark.parametrize("name", ["a.queue:high/prio", "müller ✓", "x" * 120, "A_queue-1%", "%RETRY%x", "celery@host"])
def test_any_name_is_one_of_a_queue(broker: Broker, tmp_path: Path, name: str) -> None:
    """Names with dots or other letters failed, or two of them were one queue."""
    with staged(broker, tmp_path, name) as stage, stage.app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        stage.app.amqp.queues[name](channel).declare()
        other = Queue(name.swapcase() + "2", routing_key=name.swapcase() + "2")(channel)
        other.declare()
        stage.send("begin", 1)
        assert other.get() is None
        message = stage.app.amqp.queues[name](channel).get()
        assert message is not None
        assert message.headers["task"] == "begin"
        message.ack()


def test_purge_empties_a_queue_and_counts(broker: Broker, tmp_path: Path) -> None:
    with staged(broker, tmp_path, "purged") as stage:
        for number in range(25):
            stage.send("begin", number)
        assert stage.app.control.purge() == 25
        assert stage.app.control.purge() == 0


def test_results_come_by_the_broker(stage: Stage) -> None:
    """The result backend ``rpc://``: one reply queue for each application."""
    app = Celery("results", backend="rpc://", set_as_current=False)
    app.conf.update(stage.settings)
    sent: Any = app.send_task("with_text", (400, "four"), ignore_result=False)
    assert sent.get(timeout=20) == 4
    close_with_results(app)


def _stored(broker: Broker) -> tuple[int, int]:
    """The numbers of topics and of groups that the broker has."""
    assert isinstance(broker, CometMQ)
    with SyncAdmin(broker.deployment.address) as admin:
        return len(admin.topics()), len(admin.groups())


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CometMQ]:
    with started("cometmq", tmp_path_factory.mktemp("own")) as running:
        assert isinstance(running, CometMQ)
        yield running


@pytest.fixture
def own(killed: CometMQ) -> Iterator[Broker]:
    """A broker that tests kill and start again."""
    yield killed
    if not killed.deployment.broker.running:
        killed.start()


class TestWithoutABroker:
    def test_a_worker_goes_on_after_restarts_of_the_broker(self, own: Broker, tmp_path: Path) -> None:
        """#8030, #8384, #9054, #10205: it connected again, and took no more tasks; nor did remote control answer."""
        with staged(own, tmp_path, "restarts") as stage, stage.working() as worker:
            for number in range(4):
                stage.send("begin", number)
                stage.wait(lambda: len(stage.begun()) > number, f"task {number} begins")  # noqa: B023
                own.kill()
                if number % 2:
                    block_for(1.5)  # the worker has noticed
                own.start()
            stage.send("begin", 4)
            stage.wait(lambda: 4 in stage.begun(), "the last task begins")
            stage.wait(lambda: stage.ping(), "remote control answers")
            assert sorted(stage.begun()) == list(range(5))
            assert worker.running

    def test_a_worker_can_be_started_before_the_broker(self, own: Broker, tmp_path: Path) -> None:
        """#8433."""
        with staged(own, tmp_path, "before") as stage:
            own.kill()
            worker = stage.worker()
            worker.start()
            try:
                stage.wait(lambda: "roker" in worker.tail() or not worker.running, "the worker misses the broker")
                own.start()
                stage.send("begin", 1)
                stage.wait(lambda: stage.begun() == [1] or not worker.running, "the task begins")
                assert stage.begun() == [1], worker.tail()
                worker.stop()
            finally:
                worker.kill()

    def test_a_producer_is_told_that_there_is_no_broker(self, own: Broker, tmp_path: Path) -> None:
        """#4296, #4383, #6911: it waited for ever, at the latest the second time."""
        with staged(own, tmp_path, "down") as stage:
            stage.send("begin", 1)
            own.kill()
            for options in ({"retry": False}, {"retry": False}, {"retry_policy": {"max_retries": 1}}):
                began = time.monotonic()
                with pytest.raises(OperationalError):
                    stage.send("begin", 2, **options)
                assert time.monotonic() - began < 15
            own.start()
            stage.send("begin", 3)
            with stage.working():
                stage.wait(lambda: {1, 3} <= set(stage.begun()), "both begin")
