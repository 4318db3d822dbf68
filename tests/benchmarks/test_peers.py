"""The comparison with other systems counts what servers have, and says what it could not measure."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn
from xml.etree import ElementTree

import pytest
from benchmarks.peers.__main__ import compare, one_round
from benchmarks.peers.bars import Panel, bars
from benchmarks.peers.load import CASES, Family, peerload
from benchmarks.peers.report import paged, picture, read, report, uncounted
from benchmarks.peers.systems import PEERS
from tests.interop.builds import ToolMissingError, redis_server
from tests.interop.conftest import unavailable

OURS = PEERS[0]
COST = {"cpu_us": 8.0, "per_s": 1000.0, "p50_us": 1500.0, "p99_us": 9000.0, "generator": 0.5}


def line(peer: str, case: str, **more: Any) -> dict[str, Any]:
    return {"round": 1, "peer": peer, "case": case, "messages": 100, **COST, **more}


LINES = [
    {"peer": "cometmq", "version": "1.0"},
    {"peer": "kafka", "version": "3.9.1"},
    {"peer": "redis", "missing": "redis-server is not installed"},
    line("cometmq", "128 B, 64 × 1", stored=150),
    line("cometmq", "128 B, 64 × 1", stored=100, cpu_us=9.0),
    line("cometmq", "128 B, 64 × 1", stored=100, cpu_us=20.0, per_s=3000.0),
    line("kafka", "128 B, 64 × 1", stored=101),
    {"round": 1, "peer": "kafka", "broke": "died"},
]


def test_the_tables_have_medians_and_what_went_wrong() -> None:
    text = report(LINES)
    assert "| CometMQ 1.0 | 9.0 | — | — | — | — | — | — | — |" in text
    assert "| Kafka 3.9.1 | 1,000 | — |" in text
    assert "| Kafka 3.9.1 | **8.0** | — |" in text
    assert "| CometMQ 1.0 | 1.5 / 9.0 | — |" in text
    assert "* **redis** cannot be had here: redis-server is not installed" in text
    assert "* **kafka** broke off in round 1: died" in text
    assert "* **kafka** has 101 messages in *128 B, 64 × 1*, not 100" in text
    assert "After 3 of 4 sends the server had the messages" in text


@pytest.mark.parametrize(
    ("peer", "stored", "wrong"),
    [
        ("cometmq", 100, False),
        ("cometmq", 164, False),
        ("cometmq", 165, True),
        ("cometmq", 99, True),
        ("nats", 101, True),
    ],
)
def test_only_what_was_in_flight_may_be_more(peer: str, stored: int, wrong: bool) -> None:
    assert uncounted(line(peer, "128 B, 64 × 1", stored=stored)) is wrong


def test_printed_lines_are_read_again() -> None:
    assert read("\n".join(["noise", *(json.dumps(one) for one in LINES), "| a table |"])) == LINES


def test_the_picture_has_a_bar_for_each_value() -> None:
    ElementTree.fromstring(picture(LINES))
    text = bars([Panel("P", {"g": {"a": 10.0, "b": 5.0}, "none": {}})], ["a", "b", "c"], "b")
    assert [rect.get("width") for rect in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}rect")] == [
        "920",
        "265.0",
        "132.5",
    ]


def test_titles_beside_each_other_do_not_overlap() -> None:
    """A bold letter is 0.57 of its size wide, in the widest font that browsers use for `sans-serif`."""
    texts = ElementTree.fromstring(picture(LINES)).iterfind(".//{*}text[@y='20']")
    first, second = sorted(texts, key=lambda text: float(text.get("x", 0)))
    end = float(first.get("x", 0)) + len(first.text or "") * 0.57 * float(first.get("font-size", 0))
    assert end < float(second.get("x", 0))


def test_a_page_gets_its_tables() -> None:
    page = "before\n\n<!-- peers -->\nold\n<!-- end of peers -->\n\nafter\n"
    assert paged(page, "new") == page.replace("old", "new")
    with pytest.raises(ValueError, match="no marks"):
        paged("before", "new")


def test_a_system_that_cannot_be_had_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def missing() -> NoReturn:
        raise ToolMissingError("java is not installed")

    lines = compare([replace(OURS, key="kafka", version=missing)], rounds=1, seconds=0.1, warm_s=0)
    assert lines == read(capsys.readouterr().out) == [{"peer": "kafka", "missing": "java is not installed"}]


def test_processor_time_is_that_of_all_descendants() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]]); input()"
    works = "import time\nwhile time.process_time() < 0.3: pass"
    with subprocess.Popen([sys.executable, "-c", code, works], stdin=subprocess.PIPE) as process:
        family, until = Family(process.pid), time.monotonic() + 60
        while family.cpu_seconds() < 0.3:  # also after the child has ended
            assert time.monotonic() < until
        assert family.memory_mb()["resident_mb"] > 1
        process.communicate(b"\n")


needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@needs_cc
def test_our_own_side_runs() -> None:
    """Every case, batches too; each send is stored, each read finds all."""
    small = [case for case in CASES if case.body == 128]
    lines = list(one_round(OURS, small, seconds=0.2, warm_s=0))
    assert [one["case"] for one in lines if "case" in one] == [case.name for case in small]
    assert not any(uncounted(one) for one in lines if "case" in one)
    (piped,) = (one for one in lines if one.get("case") == "128 B, 16 × 32")
    (drained,) = (one for one in lines if one.get("case") == "128 B, read")
    assert drained["messages"] == piped["stored"] > 0
    assert all(one["cpu_us"] > 0 for one in lines if "case" in one)


@contextmanager
def server_of(reply: bytes) -> Iterator[int]:
    """A server that answers the first bytes of each connection once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(reply)
                while connection.recv(1 << 16):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()


@needs_cc
def test_a_refused_message_is_no_success() -> None:
    with server_of(b"-OOM command not allowed\r\n") as port, pytest.raises(RuntimeError, match="OOM"):
        peerload("redis", "send", "-p", str(port), "-c", "1", "-s", "0")


@needs_cc
def test_a_peer_runs_if_it_is_there() -> None:
    try:
        redis_server()
    except ToolMissingError as problem:
        unavailable(problem)
    redis = next(peer for peer in PEERS if peer.key == "redis")
    small = [case for case in CASES if case.body == 128]
    lines = [one for one in one_round(redis, small, seconds=0.2, warm_s=0) if "case" in one]
    assert [one["case"] for one in lines] == [case.name for case in small if not case.batched]
    assert not any(uncounted(one) for one in lines)
