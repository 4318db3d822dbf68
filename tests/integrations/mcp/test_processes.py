"""``cometmq mcp`` as programs start it: over stdin and stdout, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from tests.helpers.pace import is_in_time
from tests.helpers.waiting import wait_for

from cometmq.cli.main import main
from cometmq.client import Message
from cometmq.errors import pip_install
from cometmq.integrations.mcp import serving
from cometmq.integrations.mcp.calls import Calls
from cometmq.integrations.mcp.options import HttpOptions, McpOptions, McpOptionsError
from cometmq.remoting.tls.own_authority import Authority
from cometmq.testing import Cluster, free_port

TOKEN = "0123456789abcdef0123456789abcdef"


def command(namesrv: str, data: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "cometmq", "mcp", "-n", namesrv, "--data", str(data), *options]


def parameters(namesrv: str, data: Path, *options: str) -> StdioServerParameters:
    words = command(namesrv, data, *options)
    return StdioServerParameters(command=words[0], args=words[1:], env={**os.environ, "PYTHONPATH": "src"})


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        await cluster.create_topic("orders", 1)
        yield cluster


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_stdin_and_stdout(cluster: Cluster, tmp_path: Path, mode: Any) -> None:
    result = await cluster.send(Message("orders", b"hello"))
    async with Client(parameters(cluster.namesrv_address, tmp_path), mode=mode) as client:
        assert client.server_info is None or client.server_info.name == "cometmq"
        assert len((await client.list_tools()).tools) == 16
        found = await client.call_tool("rmq_message_query", {"topicName": "orders", "msgId": result.msg_id})
    assert not found.is_error
    assert ">hello</untrusted-" in found.structured_content["items"][0]["body"]
    entries = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    (call,) = [entry for entry in entries if entry["event"] == "call"]
    assert (call["tool"], call["outcome"]) == ("rmq.message.query", "done")


@contextmanager
def running(words: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def request(number: int, method: str, **fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": fields}).encode() + b"\n"


INITIALIZE = request(
    1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "claude-ai", "version": "1"}
)
INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'


def read_line(stream: IO[bytes] | None) -> dict[str, Any]:
    assert stream is not None
    line: dict[str, Any] = json.loads(stream.readline())
    return line


def test_without_a_nameserver_tools_are_listed_and_calls_fail_in_time(tmp_path: Path) -> None:
    with running(command(f"127.0.0.1:{free_port('127.0.0.1')}", tmp_path)) as process:
        assert process.stdin is not None
        process.stdin.write(INITIALIZE + INITIALIZED + request(2, "tools/list"))
        process.stdin.flush()
        assert read_line(process.stdout)["result"]["serverInfo"]["name"] == "cometmq"
        assert len(read_line(process.stdout)["result"]["tools"]) == 16
        began = time.monotonic()
        process.stdin.write(request(3, "tools/call", name="rmq_topic_list", arguments={}))
        process.stdin.flush()
        result = read_line(process.stdout)["result"]
        assert result["isError"]
        assert "127.0.0.1" in result["content"][0]["text"]
        assert is_in_time(time.monotonic() - began, 10)


@pytest.mark.parametrize("how", ["its stdin ends", "SIGTERM", "SIGINT"])
def test_it_ends_with_its_client(tmp_path: Path, how: str) -> None:
    with running(command("127.0.0.1:9", tmp_path)) as process:
        assert process.stdin is not None
        process.stdin.write(INITIALIZE)
        process.stdin.flush()
        read_line(process.stdout)
        if how.startswith("SIG"):
            process.send_signal(signal.Signals[how])
        else:
            process.stdin.close()
            process.stdin = None
        assert process.wait(20) == 0
        assert process.stdout is not None
        assert process.stdout.read() == b"", "stdout has only messages of the protocol"


def test_lines_that_are_no_messages_do_not_stop_it(tmp_path: Path) -> None:
    with running(command("127.0.0.1:9", tmp_path)) as process:
        assert process.stdin is not None
        process.stdin.write(
            b"\xff\xfe\n{}\nnull\n[[[[\n" + b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b"}\n" + INITIALIZE
        )
        process.stdin.flush()
        while True:
            answer = read_line(process.stdout)
            if answer.get("id") == 1:
                break
        assert answer["result"]["serverInfo"]["name"] == "cometmq"


# --- HTTP -----------------------------------------------------------------------------------------


@asynccontextmanager
async def served(cluster: Cluster, data: Path, *options: str, token: str = "") -> AsyncIterator[tuple[str, str]]:
    """Yields the server's address, and the token that clients must send."""
    environment = {**os.environ, "COMETMQ_MCP_TOKEN": token, "PYTHONPATH": "src"}
    words = command(cluster.namesrv_address, data, "--http", "--port", "0", *options)
    with running(words, env=environment) as process:
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        seen = b""

        def is_ready() -> bool:
            nonlocal seen
            assert process.stderr is not None
            seen += process.stderr.read() or b""
            return b"/mcp" in seen

        wait_for(is_ready, "the server's ready line")
        text = seen.decode()
        yield text.split("ready: ")[1].split()[0], token or text.split("Bearer ")[1].split()[0]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("given", "options"), [(TOKEN, []), ("", ["--allow-writes"])], ids=["a token that is set", "a token that is made"]
)
async def test_http_with_a_token(cluster: Cluster, tmp_path: Path, given: str, options: list[str]) -> None:
    """Any process and any user of the machine reaches the loopback address, so nobody gets in without a token."""
    async with served(cluster, tmp_path, *options, token=given) as (url, token):
        assert token == given or len(token) == 64
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            found = await client.call_tool("rmq_topic_list", {})
            assert [item["name"] for item in found.structured_content["items"]] == ["orders"]
        async with httpx2.AsyncClient() as http:
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
            accept = {"Accept": "application/json, text/event-stream"}
            for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {token}"}):
                assert (await http.post(url, json=body, headers={**accept, **wrong})).status_code == 401
    entries = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert [entry["by"] for entry in entries if entry["event"] == "call"] == ["token"]


async def test_http_refuses_foreign_hosts_origins_and_sizes(cluster: Cluster, tmp_path: Path) -> None:
    async with served(cluster, tmp_path, "--name", "mcp.example.com") as (url, token), httpx2.AsyncClient() as http:
        accept = {"Accept": "application/json, text/event-stream", "Authorization": f"Bearer {token}"}

        async def status(body: bytes = INITIALIZE, **headers: str) -> int:
            sent = {**accept, "Content-Type": "application/json", **headers}
            return (await http.post(url, content=body, headers=sent)).status_code

        assert await status() == 200
        assert await status(Host="mcp.example.com") == 200
        assert await status(Host="evil.example.com") == 421
        assert await status(Host="127.0.0.1.evil.example.com:80") == 421
        assert await status(Origin="http://evil.example.com") == 403
        assert await status(Origin="null") == 403, "a page in a sandbox, or a file"
        assert await status(Origin="https://mcp.example.com") == 200
        assert await status(b"x" * (5 * 1024 * 1024)) == 413
        assert (await http.get(url.removesuffix("/mcp") + "/other")).status_code == 404


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1",
        b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{",
        b"GET /other HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET",
    ],
)
async def test_a_connection_without_a_complete_request_ends(
    sent: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred connections that send nothing would keep all others out."""
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 0.2)
    calls = Calls(McpOptions("127.0.0.1:9", tmp_path))
    await calls.start()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()
    server = asyncio.create_task(serving.serve_http(calls, HttpOptions(TOKEN, port=0), ready.set_result, _until(done)))
    port = int((await ready).split(":")[2].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    await asyncio.wait_for(reader.read(), 20)
    writer.close()
    done.set()
    await server
    await calls.stop()


async def _until(done: asyncio.Event) -> None:
    await done.wait()


async def test_https_on_every_address(cluster: Cluster, tmp_path: Path) -> None:
    authority = Authority.new("test", 10)
    issued = authority.issue("mcp", ["127.0.0.1"], 10)
    (tmp_path / "ca.pem").write_bytes(authority.issued.certificate)
    (tmp_path / "cert.pem").write_bytes(issued.certificate)
    (tmp_path / "key.pem").write_bytes(issued.key)
    pair = ("--certificate", str(tmp_path / "cert.pem"), "--key", str(tmp_path / "key.pem"))
    async with served(cluster, tmp_path, "--host", "0.0.0.0", *pair, token=TOKEN) as (url, _):
        assert url.startswith("https://0.0.0.0:")
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            httpx2.AsyncClient(headers=headers, verify=context) as http,
            Client(streamable_http_client(url.replace("0.0.0.0", "127.0.0.1"), http_client=http)) as client,
        ):
            assert len((await client.list_tools()).tools) == 16


def test_an_audit_log_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = command("127.0.0.1:9", tmp_path / "file" / "below")
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 1
    assert "choose another directory with --data" in done.stderr.decode()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--http", "--host", "0.0.0.0"], "others could use this server, which listens on 0.0.0.0, without a token"),
        (["--http", "--certificate", "x"], "--certificate and --key must be used together"),
        (["--name", "x"], "belong to HTTP"),
        (["--mask", "("], "not a regular expression"),
        (["--http", "--token-file", "/nowhere"], "cannot be read"),
    ],
)
def test_options_that_are_not_safe_are_refused(
    options: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COMETMQ_MCP_TOKEN", raising=False)
    with pytest.raises(SystemExit) as stop:
        main(["mcp", "-n", "127.0.0.1:9", "--data", str(tmp_path), *options])
    assert stop.value.code != 0
    written = capsys.readouterr()
    assert words in written.err
    assert written.out == ""


@pytest.mark.parametrize("token", ["schlüssel-mit-umlaut", "two words of a token", "x" * 20 + "\n"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(McpOptionsError, match="HTTP headers cannot carry"):
        HttpOptions(token=token)


def test_the_command_names_its_extra(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['mcp'] = None; from cometmq.cli.main import main; "
        f"main(['mcp', '-n', '127.0.0.1:9', '--data', {str(tmp_path)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 1
    assert pip_install("mcp").encode() in done.stderr


def test_help_imports_nothing_of_the_package() -> None:
    code = (
        "import sys; from cometmq.cli.main import root; root.get_command(None, 'mcp'); assert 'mcp' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
