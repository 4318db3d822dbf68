"""The demo: its stream, its verdict, and one small run of all of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from examples.demo.__main__ import played
from examples.demo.lake import Audited, Lake
from examples.demo.orders import CANCELLED_EARLY, CANCELLED_LATE, DELIVERED, TOPIC, events_of
from examples.demo.process import LAST_LINES, Process, Sent
from examples.demo.producer import OrderProducer, Task
from examples.demo.report import compare
from examples.demo.stage import Observed, Plan, Stage
from tests.helpers.waiting import wait_for
from tests.spark.home import quick_drivers

from cometmq.client.errors import RouteNotFoundError
from cometmq.client.producer.producer import Producer
from cometmq.errors import CometMQError
from cometmq.remoting.bodies import MessageQueue
from cometmq.testing import Cluster

DEMO_SECONDS = 540.0
ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "examples.demo")

COUNTS = {0: 4, 1: 2}
EVENTS = {0: Sent(4, 30), 1: Sent(2, 17)}


def audited(counts: dict[int, int], *disagreements: str) -> Audited:
    return Audited(not disagreements, counts, counts, counts, list(disagreements))


def verdict_of(acked: dict[int, Sent] = EVENTS, consumed_by: tuple[int, ...] = (6,), **found: Any) -> tuple[str, ...]:
    """Differences of a demo with six events, where Spark found this."""
    agreeing = {
        "archive_bytes": 1,
        "replayed": COUNTS,
        "of_archive": audited(COUNTS),
        "of_copy": audited(COUNTS),
        "events": EVENTS,
        "out_of_order": 0,
        "unlike": [],
        "seconds": {},
    }
    lake = Lake(**{**agreeing, **found})
    seen = Observed(acked, list(consumed_by), lake, samples=[], killed_ms=0, back_ms=0, retries=0)
    return compare(6, seen).differences


def test_agreement_with_redelivery_and_with_a_copy_of_a_lost_acknowledgement() -> None:
    assert verdict_of() == ()
    assert verdict_of(consumed_by=(4, 3)) == ()
    counts = {0: 4, 1: 3}
    copied: dict[str, Any] = {"replayed": counts, "of_archive": audited(counts), "of_copy": audited(counts)}
    assert verdict_of(consumed_by=(7,), **copied) == ()


LESS = {0: 4, 1: 1}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"acked": {0: Sent(4, 30), 1: Sent(1, 8)}}, "were not acknowledged"),
        ({"acked": {0: Sent(4, 30), 1: Sent(2, 18)}}, "queues have other events in the archive"),
        ({"events": {0: Sent(4, 30), 1: Sent(1, 8)}}, "queues have other events in the archive"),
        ({"events": {0: Sent(4, 30)}}, "queues have other events in the archive"),
        ({"consumed_by": (3, 2)}, "records were never delivered"),
        ({"out_of_order": 1}, "stand before an earlier change"),
        ({"replayed": LESS}, "queues have counts that differ"),
        ({"of_copy": audited({0: 4, 1: 3})}, "queues have counts that differ"),
        ({"of_archive": Audited(True, {0: 4, 1: 3}, COUNTS, COUNTS, [])}, "queues have counts that differ"),
        ({"of_archive": Audited(True, COUNTS, LESS, COUNTS, [])}, "queues have counts that differ"),
        ({"of_archive": Audited(True, COUNTS, COUNTS, LESS, [])}, "queues have counts that differ"),
        ({"unlike": [1]}, "queues of the replay hold other messages than the archive"),
        ({"of_archive": audited(COUNTS, "offset 7 is missing")}, "offset 7 is missing"),
        ({"of_copy": audited(COUNTS, "offset 8 is missing")}, "offset 8 is missing"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_every_difference_is_found(changed: dict[str, Any], words: str) -> None:
    assert any(words in difference for difference in verdict_of(**changed))


def test_orders_live_as_orders_do() -> None:
    lives: dict[int, list[str]] = defaultdict(list)
    numbers = set()
    for producer in range(2):
        for event in events_of(producer, 2, 20_000):
            assert event.order % 2 == producer
            assert event.step == len(lives[event.order])
            lives[event.order].append(event.state)
            numbers.add(event.number)
    assert len(numbers) == 40_000
    whole = [tuple(life) for life in lives.values() if life[-1] in ("delivered", "cancelled")]
    assert set(whole) == {DELIVERED, CANCELLED_EARLY, CANCELLED_LATE}
    assert list(events_of(0, 2, 500)) == list(events_of(0, 2, 500)), "the stream is the same at every run"


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_a_small_demo_agrees_whatever_other_clusters_want_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")
    size = ("--messages", "20000", "--rate", "8000")
    for name, value in quick_drivers(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ROCKETMQ_TLS_ENABLE", "true")
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "of another cluster")
    done = run_demo(*size, "--report", str(tmp_path / "demo"))
    assert done.returncode == 0, done.stderr
    assert "All counts agree: 20,000 changes of orders" in done.stdout
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert report["agrees"]
    assert sum(queue["acknowledged"] for queue in report["queues"]) == 20_000
    assert all(queue["copied"] == queue["replayed"] == queue["stored"] for queue in report["queues"])
    assert (tmp_path / "demo" / "report.txt").read_text().startswith("Messages by queue")
    assert (tmp_path / "demo" / "demo.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "All counts agree: 20,000 changes" in page
    for link in re.findall(r'href="([^"]+)"', page):
        assert "✔" in (tmp_path / "demo" / link).read_text(), link
    assert not (tmp_path / "demo" / "work").exists()


@pytest.mark.crash
@pytest.mark.parametrize(
    ("act", "number"),
    [
        ("starting nameserver and broker", signal.SIGINT),
        ("orders flow", signal.SIGINT),
        ("the broker starts again on its store", signal.SIGTERM),
    ],
)
def test_an_interrupted_demo_leaves_no_process_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str, number: signal.Signals
) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")
    place = tmp_path / "interrupted"
    monkeypatch.setenv("DEMO_OF_THIS_TEST", str(place))
    size = ("--messages", "2000", "--rate", "2000")
    with running_demo(place, *size) as demo:
        assert demo.stderr is not None
        said = b""
        while act.encode() not in (line := demo.stderr.readline()):
            said += line
            assert line, f"the demo ended before: {act}: {said.decode()}"
        assert running_in(place)
        demo.send_signal(number)
        assert demo.wait(60) == 130
        assert b"Traceback" not in demo.stderr.read()
        wait_for(lambda: not running_in(place), "all processes are gone", 60)


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = (*COMMAND, *arguments)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEMO_SECONDS, check=False)


@contextmanager
def running_demo(place: Path, *size: str) -> Iterator[subprocess.Popen[bytes]]:
    """A demo; none of its processes is left behind, however the test ends."""
    command = (*COMMAND, *size, "--report", str(place))
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as demo:
        try:
            yield demo
        finally:
            while left := running_in(place):
                for number in left:
                    with suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)
                demo.poll()


class Early(Producer):
    """Says when it has found no broker."""

    def __init__(self, group: str, namesrv: str) -> None:
        super().__init__(group, namesrv)
        self.found_none = asyncio.Event()

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        try:
            return await super().queues(topic)
        except RouteNotFoundError:
            self.found_none.set()
            raise


async def test_a_producer_that_begins_while_the_broker_is_away_waits_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    async with Cluster() as cluster:
        await cluster.create_topic(TOPIC, queues=4)
        await cluster.kill_broker(0)
        task = Task(cluster.namesrv_address, number=0, producers=1, events=1_000, per_second=1e6)
        async with Early("order-entry-0", task.namesrv) as early:
            running = asyncio.create_task(OrderProducer(task, early).run())
            await asyncio.wait({running, asyncio.create_task(early.found_none.wait())}, return_when="FIRST_COMPLETED")
            await cluster.start_broker(0)
            await running
            assert early.found_none.is_set()
        stored = cluster.broker(0).store.queues()[TOPIC].values()
        assert sum(queue.max_offset() for queue in stored) == 1_000
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["done"], sum(queue["events"] for queue in last["queues"].values())) == (1_000, 1_000)


class CleaningUp(Stage):
    """Is told to end, and again while it does what must be done then."""

    is_clean = False

    async def run(self) -> Observed:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
                os.kill(os.getpid(), number)
                await asyncio.sleep(0)
            self.is_clean = True
        raise AssertionError("it was never told to end")


def test_a_second_signal_does_not_cut_the_cleaning_up_short(tmp_path: Path) -> None:
    stage = CleaningUp(Plan(1, 1, 1, 1.0, tmp_path), lambda _: None)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(played(stage))
    assert stage.is_clean


def running_in(place: Path) -> list[int]:
    """Processes that a demo has started: their environment names its directory."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"DEMO_OF_THIS_TEST={place}".encode() in environment.read_bytes():
                found.append(int(environment.parent.name))
        except OSError:
            continue
    return found


async def failure_of(log: Path, statement: str) -> str:
    """The error of a process that runs a statement."""
    process = Process("broker", "timeit", ("-n1", "-r1", "-s", "import atexit, sys", statement), log)
    await process.start()
    with pytest.raises(CometMQError) as failed:
        await process.finished()
    await process.kill()
    assert str(log) in str(failed.value)
    return str(failed.value)


async def test_a_process_that_failed_is_shown_with_the_end_of_its_log(tmp_path: Path) -> None:
    goodbye = "atexit.register(lambda: sys.stderr.write('the port is closed\\n'))"
    failure = await failure_of(tmp_path / "broker.log", f"{goodbye}; raise ValueError('the store is damaged')")
    assert "ValueError: the store is damaged\n" in failure
    assert "the port is closed\n" in failure
    assert "Traceback" in failure


async def test_a_process_that_failed_is_shown_with_its_error_however_much_it_wrote_after_it(tmp_path: Path) -> None:
    written = "'2026-12-01 ERROR store: the disk is gone\\n' + 'a connection is closed\\n' * 100_000"
    failure = await failure_of(tmp_path / "broker.log", f"atexit.register(sys.stderr.write, {written}); sys.exit(1)")
    assert "ERROR store: the disk is gone\n" in failure
    assert failure.count("a connection is closed") == LAST_LINES


def test_demo_without_java_says_what_to_do(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")
    nothing = tmp_path / "bin"
    nothing.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(nothing))
        patch.delenv("JAVA_HOME", raising=False)
        failed = run_demo("--report", str(tmp_path / "demo"))
    assert failed.returncode == 1
    assert "Java 17" in failed.stderr
    assert "install" in failed.stderr
