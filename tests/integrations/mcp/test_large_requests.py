"""Large requests: many at a time over HTTP have a limit together, and their memory comes back."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from tests.helpers.pace import slowness_of_processor
from tests.integrations.mcp.test_processes import (
    INITIALIZE,
    INITIALIZED,
    command,
    parameters,
    read_line,
    request,
    running,
    served,
)

from cometmq.testing import Cluster

MOST_MB = 120
"""Growth of the process: the bodies that are read at a time, several times over. Without a limit it was 530."""


async def test_forty_large_requests_at_a_time_leave_no_memory_behind(tmp_path: Path) -> None:
    async with Cluster() as cluster, served(cluster, tmp_path) as (url, token):
        accept = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        async with httpx2.AsyncClient(headers={**accept, "Authorization": f"Bearer {token}"}, timeout=60) as http:
            opened = await http.post(url, content=INITIALIZE)
            session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}
            await http.post(url, content=INITIALIZED, headers=session)

            async def call(number: int, size: int) -> int:
                asked: dict[str, Any] = {"name": "rmq_topic_list", "arguments": {"filter": "x" * size}}
                body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": asked}
                answer = await http.post(url, content=json.dumps(body).encode(), headers=session)
                return answer.status_code

            process = _process_of(tmp_path)
            assert await call(2, 10) == 200
            before = memory_mb(process, "VmHWM")
            found = set(await asyncio.gather(*(call(number, 4_000_000) for number in range(10, 50))))
            assert found <= {200, 503}
            assert 200 in found
            assert memory_mb(process, "VmHWM") - before < MOST_MB
            assert await call(100, 10) == 200
            assert memory_mb(process, "VmRSS") - before < MOST_MB


async def test_a_session_cannot_be_opened_with_a_large_request(tmp_path: Path) -> None:
    """A session keeps the name of its client."""
    async with Cluster() as cluster, served(cluster, tmp_path) as (url, token), httpx2.AsyncClient() as http:
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        headers["Authorization"] = f"Bearer {token}"
        long = INITIALIZE.replace(b"claude-ai", b"x" * 70_000)
        assert (await http.post(url, content=long, headers=headers)).status_code == 413
        assert (await http.post(url, content=INITIALIZE, headers=headers)).status_code == 200


BOMBS = {
    "empty lists": b"[" + b"[]," * 1_390_000 + b"1]",
    "nested lists": b"[" + (b"[" * 100 + b"]" * 100 + b",") * 20_000 + b"1]",
    "empty texts": b"[" + b'"",' * 1_390_000 + b"1]",
    "numbers": b"[" + b"1," * 2_000_000 + b"1]",
}
"""Values of arguments, within the largest request."""


async def test_small_values_without_number_do_not_stop_the_server(tmp_path: Path) -> None:
    """Bytes are no limit of the time: four megabytes of empty lists took two seconds."""
    async with Cluster() as cluster, served(cluster, tmp_path) as (url, token):
        accept = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        async with httpx2.AsyncClient(headers={**accept, "Authorization": f"Bearer {token}"}, timeout=60) as http:
            opened = await http.post(url, content=INITIALIZE)
            session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}
            await http.post(url, content=INITIALIZED, headers=session)
            process = _process_of(tmp_path)
            for name, value in BOMBS.items():
                arguments = b'{"filter":"x","more":' + value + b"}"
                call = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"rmq_topic_list","arguments":'
                began = _processor_s(process)
                answer = await http.post(url, content=call + arguments + b"}}", headers=session)
                took_s = _processor_s(process) - began
                assert answer.status_code == 413, name
                assert "10,000 values" in answer.text
                assert took_s < 0.3 or took_s < 0.3 * slowness_of_processor(), name
            whole = json.dumps({"a": [{"b": "[" * 50_000}]})
            asked: dict[str, Any] = {"name": "rmq_topic_list", "arguments": {"filter": whole}}
            call = json.dumps({"jsonrpc": "2.0", "id": 8, "method": "tools/call", "params": asked}).encode()
            assert (await http.post(url, content=call, headers=session)).status_code == 200


def test_a_line_of_stdin_has_the_limits_of_a_request(tmp_path: Path) -> None:
    """Four megabytes of empty lists took two seconds; a line without end took all memory."""
    with running(command("127.0.0.1:9", tmp_path)) as process:
        assert process.stdin is not None
        process.stdin.write(INITIALIZE + INITIALIZED)
        process.stdin.flush()
        read_line(process.stdout)
        place = Path(f"/proc/{process.pid}")
        before = memory_mb(place, "VmHWM")
        for number, (name, value) in enumerate(BOMBS.items(), 10):
            began = _processor_s(place)
            process.stdin.write(request(number, "tools/call", name="rmq_topic_list", arguments={"a": 0})[:-4])
            process.stdin.write(b',"more":' + value + b"}}}\n")
            process.stdin.flush()
            answer = read_line(process.stdout)
            took_s = _processor_s(place) - began
            assert answer["id"] == number, name
            assert "10,000 values and 64 levels" in answer["error"]["message"]
            assert took_s < 0.3 or took_s < 0.3 * slowness_of_processor(), name
        process.stdin.write(b'{"method":"tools/call","params":{"name":"')
        for _ in range(200):
            process.stdin.write(b"x" * 1_000_000)
        process.stdin.write(b'"},"jsonrpc":"2.0","id":"the last"}\n' + request(30, "tools/list"))
        process.stdin.flush()
        refused = read_line(process.stdout)
        assert (refused["id"], refused["error"]["code"]) == ("the last", -32600)
        assert "4,194,304 bytes" in refused["error"]["message"]
        assert len(read_line(process.stdout)["result"]["tools"]) == 16
        assert memory_mb(place, "VmHWM") - before < MOST_MB


async def test_a_client_learns_at_once_that_its_request_is_too_large(tmp_path: Path) -> None:
    async with Client(parameters("127.0.0.1:9", tmp_path), mode="legacy") as client:
        with pytest.raises(MCPError, match="at most 4,194,304 bytes"):
            await client.call_tool("rmq_topic_list", {"filter": "x" * 5_000_000})
        assert len((await client.list_tools()).tools) == 16


def _processor_s(process: Path) -> float:
    """The processor time of a process, with all threads; much of a request is the receiving of its bytes."""
    return sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def _process_of(data: Path) -> Path:
    """The directory of the server with this data in /proc."""
    wanted = str(data).encode()
    return next(one for one in Path("/proc").glob("[0-9]*") if wanted in (one / "cmdline").read_bytes().split(b"\0"))


def memory_mb(process: Path, field: str) -> int:
    lines = (process / "status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) // 1024
