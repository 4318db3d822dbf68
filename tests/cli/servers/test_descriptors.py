"""Few descriptors: connections are refused before files go short, and messages and timers go on."""

from __future__ import annotations

import datetime
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine
from tests.helpers.waiting import wait_for

from cometmq import descriptors
from cometmq.client import Message
from cometmq.client.sync import SyncProducer, SyncPullConsumer
from cometmq.testing import free_port

FEW = 512


@pytest.fixture
def few(offline: CommandLine, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, str]]:
    """A broker and a nameserver that may have 512 descriptors, and no more; the broker's port, the nameserver."""
    port, names = free_port(), free_port()
    limited = f'ulimit -S -n {FEW // 2} && ulimit -H -n {FEW} && exec "$@"'
    serve = ["-m", "cometmq", "serve", "--no-console", "--data", str(tmp_path / "data"), "--port", str(port)]
    command = ["sh", "-c", limited, "sh", sys.executable, *serve, "--namesrv-port", str(names)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"ready" in process.stdout.readline()
        yield process, port, f"127.0.0.1:{names}"
        process.terminate()


def kept(sockets: list[socket.socket]) -> int:
    """The number of those that the server did not close."""
    open_ones = 0
    for one in sockets:
        one.settimeout(0.001)
        try:
            open_ones += one.recv(1) != b""
        except TimeoutError:
            open_ones += 1
        except ConnectionError:
            pass
    return open_ones


def test_more_connections_than_descriptors_leave_the_store_its_files(
    few: tuple[subprocess.Popen[bytes], int, str],
) -> None:
    process, port, namesrv = few
    with ExitStack() as stack:
        producer = stack.enter_context(SyncProducer("few", namesrv))
        consumer = stack.enter_context(SyncPullConsumer("few", namesrv))
        producer.send(Message("timers", b"now"))
        queues = consumer.queues("timers")

        def found() -> list[bytes]:
            return sorted(message.body for queue in queues for message in consumer.pull(queue, 0).messages)

        assert found() == [b"now"]
        both = (port, int(namesrv.rpartition(":")[2]))
        sockets = [stack.enter_context(socket.create_connection(("127.0.0.1", both[at % 2]))) for at in range(1_000)]
        wait_for(lambda: kept(sockets) < FEW, "some are refused")
        assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) <= FEW - 32, "files have room"
        assert 200 < kept(sockets) < FEW - 64
        producer.send(Message("timers", b"timer", delay=datetime.timedelta(seconds=1)))
        for number in range(100):
            producer.send(Message(f"new{number}", b"makes files"))
        wait_for(lambda: found() == [b"now", b"timer"], "the timer comes")
    process.terminate()
    _, said = process.communicate(timeout=30)
    lines = [line for line in said.decode().splitlines() if "refus" in line]
    assert "descriptors; raise this with ulimit -n" in lines[0], lines
    assert len(lines) < 20, "one line of each server, and one for each sweep"


def test_a_server_raises_its_limit_as_far_as_it_may() -> None:
    code = (
        "import resource; from cometmq import descriptors;"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]; resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard));"
        "print(descriptors.limit(), descriptors.raise_limit() == min(hard, descriptors.MOST))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["300", "True"]
    assert 0 < descriptors.in_use() < descriptors.limit() <= resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@pytest.mark.skipif(not os.stat("/proc/self/fd").st_size, reason="Linux before 6.2 does not know their number")
def test_descriptors_are_counted_without_a_look_at_each() -> None:
    def count_with_calls() -> tuple[int, int]:
        calls = 0

        def called(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(called)
        try:
            return descriptors.in_use(), calls
        finally:
            sys.setprofile(None)

    few, calls_for_few = count_with_calls()
    with ExitStack() as opened:
        for _ in range(200):
            opened.enter_context(Path(os.devnull).open("rb"))
        many, calls_for_many = count_with_calls()
    assert many - few == 200
    assert calls_for_many == calls_for_few
