"""Requests that a client writes without reading the answers: they wait in the pipe, and all of them are answered."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO

import pytest
from tests.integrations.mcp.test_large_requests import MOST_MB, memory_mb
from tests.integrations.mcp.test_processes import INITIALIZE, INITIALIZED, command, read_line, request, running

from cometmq.integrations.mcp.options import MAX_STDIO_REQUESTS


@pytest.mark.parametrize(
    ("method", "number", "size"),
    [("ping", 6_000, 40_000), ("tools/list", 40, 3_900_000)],
    ids=["thousands of small ones", "some large ones"],
)
def test_pipelined_requests_are_all_answered_and_their_memory_is_bounded(
    tmp_path: Path, method: str, number: int, size: int
) -> None:
    """Without a limit, the process grew by 212 and by 148 MB."""
    with running(command("127.0.0.1:9", tmp_path)) as process:
        assert process.stdin is not None
        process.stdin.write(INITIALIZE + INITIALIZED)
        process.stdin.flush()
        read_line(process.stdout)
        place = Path(f"/proc/{process.pid}")
        before = memory_mb(place, "VmHWM")
        lines = (request(one, method, cursor="x" * size) for one in range(number))
        rest = write_until_it_reads_no_more(process.stdin, lines)
        writing = threading.Thread(target=process.stdin.writelines, args=(chain([rest], lines),))
        writing.start()
        answers = [read_line(process.stdout) for _ in range(number)]
        writing.join()
        assert sorted(answer["id"] for answer in answers) == list(range(number))
        assert all("result" in answer for answer in answers)
        assert memory_mb(place, "VmHWM") - before < MOST_MB


def test_cancelled_and_repeated_ids_leave_room(tmp_path: Path) -> None:
    with running(command("127.0.0.1:9", tmp_path)) as process:
        assert process.stdin is not None
        process.stdin.write(INITIALIZE + INITIALIZED)
        for one in range(2 * MAX_STDIO_REQUESTS):
            process.stdin.write(request(7, "tools/call", name="rmq_topic_list", arguments={}))
            if one % 2:
                process.stdin.write(request(0, "notifications/cancelled", requestId=7).replace(b'"id": 0, ', b""))
        process.stdin.write(request(8, "tools/list"))
        process.stdin.flush()
        while read_line(process.stdout)["id"] != 8:
            pass


def write_until_it_reads_no_more(stdin: IO[bytes], lines: Iterator[bytes]) -> bytes:
    """Write lines while the process reads them; return the rest of the last one."""
    pipe = stdin.fileno()
    os.set_blocking(pipe, False)
    try:
        for line in lines:
            rest = line
            while rest:
                if not select.select([], [pipe], [], 2)[1]:
                    return rest
                rest = rest[os.write(pipe, rest) :]
        return b""
    finally:
        os.set_blocking(pipe, True)
