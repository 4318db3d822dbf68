"""serve, namesrv and broker: readiness, signals, configuration, ports in use, several brokers."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine
from tests.helpers.waiting import wait_for

from cometmq.cli.servers.process import Stopping
from cometmq.testing import VirtualClock, free_port

READY_SECONDS_MAX = 0.6
BARE_STARTS_MAX = 5
ATTEMPTS = 5


@contextmanager
def running(command: CommandLine, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server and its ready line; stopped at the end."""
    process = command.start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline().decode()
        if not line:
            raise AssertionError(f"{arguments} said nothing but {process.stderr.read().decode()}")
        yield process, line
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
        process.stderr.close()


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def serve_arguments(data: Path, *more: str, console: bool = False) -> list[str]:
    """Of a serve without a console, which takes half a second of processor time to start."""
    less = () if console else ("--no-console",)
    return ["serve", "--data", str(data), "--port", "0", "--namesrv-port", "0", *less, *more]


def test_serve_is_ready_fast(offline: CommandLine, tmp_path: Path) -> None:
    """In one of some attempts, less the time in which other processes had the processor, and on a slow machine as
    a multiple of what Python takes to start with the libraries that a server needs."""
    took, bare = [], []
    for attempt in range(ATTEMPTS):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", "import asyncio, click, msgspec, numpy"], check=True)
        bare.append(time.monotonic() - began)
        began = time.monotonic()
        with running(offline, *serve_arguments(tmp_path / str(attempt), console=True)) as (process, _):
            wall = time.monotonic() - began
            took.append(wall - waited_for_processor(process.pid))
        if min(took) <= max(READY_SECONDS_MAX, BARE_STARTS_MAX * min(bare)):
            return
    pytest.fail(f"ready after {took} seconds, and Python with libraries after {bare}")


def waited_for_processor(pid: int) -> float:
    """Seconds that the main thread of a process was ready to run while others ran; 0 where nobody knows."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def test_serve_serves_and_stops_cleanly(offline: CommandLine, tmp_path: Path) -> None:
    with running(offline, *serve_arguments(tmp_path)) as (process, line):
        match = re.fullmatch(r"CometMQ ready: nameserver (\S+), broker (\S+), data in (\S+)\n", line)
        assert match is not None, line
        assert match[3] == str(tmp_path)
        command = CommandLine(match[1])
        assert command("produce", "first", "--body", "hello").code == 0
        assert command("consume", "first", "--from-beginning", "--max", "1").out == "hello\n"
        assert command("cluster", "list", "-o", "json").json()[0]["address"] == match[2]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert not (tmp_path / "broker-0" / "abort").exists(), "a clean stop leaves no abort file"
    with running(offline, *serve_arguments(tmp_path)) as (_, line):
        again = CommandLine(line.split()[3].rstrip(","))
        assert again("consume", "first", "--from-beginning", "--max", "1").out == "hello\n"


def test_clients_outside_get_the_addresses_for_outside(offline: CommandLine, tmp_path: Path) -> None:
    outside = free_port()
    advertised = (
        "--advertise",
        "localhost",
        "--advertise",
        "outside=192.0.2.7:30911",
        "--listener",
        f"outside={outside}",
    )
    with running(offline, *serve_arguments(tmp_path, *advertised)) as (_, line):
        match = re.fullmatch(r"CometMQ ready: nameserver (\S+), broker localhost:(\d+), data in (\S+)\n", line)
        assert match is not None, line
        assert CommandLine(match[1])("cluster", "list", "-o", "json").json()[0]["address"] == f"localhost:{match[2]}"
        listed = CommandLine(f"127.0.0.1:{outside}")("cluster", "list", "-o", "json").json()
        assert listed[0]["address"] == "192.0.2.7:30911"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--advertise", "outside=h"), "the address of outside has no listener; add --listener outside=PORT"),
        (("--listener", "outside=1"), "listener outside has no address; add --advertise outside=HOST[:PORT]"),
        (("--advertise", "0.0.0.0"), "specify an address to which clients can connect"),
        (("--listener", "outside"), "outside=19876"),
    ],
)
def test_a_listener_and_its_address_belong_together(
    offline: CommandLine, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    failed = offline(*serve_arguments(tmp_path, *options))
    assert (failed.code, words in " ".join(failed.err.split())) == (2, True), failed.err


async def test_the_second_signal_ends_at_once_unless_it_comes_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """As timeout(1) sends it: to the process, and then to all of its group."""
    ends: list[int] = []
    monkeypatch.setattr("os._exit", ends.append)
    clock = VirtualClock()
    stopping = Stopping(clock=clock)
    stopping._on_signal(signal.SIGTERM)
    clock.advance(0.1)
    stopping._on_signal(signal.SIGTERM)
    assert stopping.requested
    assert (stopping.reason, ends) == ("SIGTERM", [])
    clock.advance(0.5)
    stopping._on_signal(signal.SIGINT)
    assert ends == [130]


@pytest.mark.parametrize(
    ("option", "what"), [("--port", "broker"), ("--namesrv-port", "nameserver")], ids=["broker", "nameserver"]
)
def test_port_in_use_names_port_and_option(offline: CommandLine, tmp_path: Path, option: str, what: str) -> None:
    with taken_port() as port:
        failed = offline(*serve_arguments(tmp_path, option, str(port)))
    assert failed.code == 1
    assert failed.out == ""
    assert f"port {port} for the {what} is in use" in failed.err
    assert f"choose another port with {option}" in failed.err
    assert "Traceback" not in failed.err


def test_several_brokers_share_a_topic_and_come_back(offline: CommandLine, tmp_path: Path) -> None:
    base = free_port()
    arguments = serve_arguments(tmp_path, "--port", str(base), "--brokers", "2")
    log = tmp_path / "log"
    with running(offline, *arguments, "--log-file", str(log)) as (process, line):
        command = CommandLine(line.split()[3].rstrip(","))
        brokers = [row["broker"] for row in command("cluster", "list", "-o", "json").json()]
        assert brokers == ["broker-0", "broker-1"]
        assert command("topic", "create", "wide", "--queues", "2").code == 0
        assert command("produce", "wide", "--count", "400", "--batch", "10").code == 0
        stats = command("topic", "stats", "wide", "-o", "json").json()
        assert {row["broker"] for row in stats if row["messages"]} == {"broker-0", "broker-1"}
        first, _ = sorted(children_of(process.pid))
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: len(set(children_of(process.pid)) - {first}) == 2, "a new process replaces the killed one")
        wait_for(lambda: both_answer(command), "both brokers answer again")
        got = command("consume", "wide", "--from-beginning", "--until-end")
        assert len(got.out.splitlines()) == 400
        assert "INFO broker-0 cometmq." in log.read_text(), "lines of several servers name theirs"
        assert "INFO broker-1 cometmq." in log.read_text()
        assert "WARNING cometmq.cli.servers.supervise: broker-" in log.read_text()
        children = children_of(process.pid)
        process.kill()
        process.wait()
        wait_for(lambda: not any(alive(pid) for pid in children), "brokers end with the process that started them")


def test_a_broker_that_cannot_be_started_for_want_of_descriptors_comes_back_later(
    offline: CommandLine, tmp_path: Path
) -> None:
    base = free_port()
    arguments = serve_arguments(tmp_path, "--port", str(base), "--brokers", "2")
    with running(offline, *arguments) as (process, _):
        assert process.stderr is not None
        first, second = sorted(children_of(process.pid))
        limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        os.kill(first, signal.SIGKILL)
        while b"cannot be started" not in (said := process.stderr.readline()):
            assert said
        assert b"trying again in" in said
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
        wait_for(lambda: len(set(children_of(process.pid)) - {first}) == 2, "a new process replaces the killed one")
        assert second in children_of(process.pid), "the other one serves all the time"


def both_answer(command: CommandLine) -> bool:
    """Tell whether two brokers are registered and answer; one that starts is not registered yet."""
    listed = command("cluster", "list", "-o", "json")
    return listed.code == 0 and len(listed.json()) == 2 and command("cluster", "status").code == 0


def children_of(parent: int) -> list[int]:
    """Process ids of living children; the second field after the name in /proc/PID/stat is the parent."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, ppid = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(ppid) == parent and state != "Z":
            found.append(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_namesrv_and_broker_apart(offline: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "namesrv.conf").write_text(f"listenPort=0\nkvConfigPath={tmp_path}/kv.json\n")
    with running(offline, "namesrv", "-c", str(tmp_path / "namesrv.conf")) as (_, line):
        address = line.split()[-1]
        (tmp_path / "broker.conf").write_text(
            f"# Apache's own keys\nbrokerName = apart\nbrokerIP1=127.0.0.1\nlistenPort=0\n"
            f"storePathRootDir={tmp_path}/store\nsendMessageThreadPoolNums=16\n"
        )
        with running(offline, "broker", "-n", address, "-c", str(tmp_path / "broker.conf")) as (_, ready):
            assert ready.startswith("CometMQ broker apart ready: 127.0.0.1:")
            assert CommandLine(address)("cluster", "list", "-o", "json").json()[0]["broker"] == "apart"


def test_the_file_names_the_nameserver_before_the_environment_does(offline: CommandLine, tmp_path: Path) -> None:
    with running(offline, "namesrv", "-p", "0", "-o", f"kvConfigPath={tmp_path}/kv.json") as (_, line):
        address = line.split()[-1]
        common = f"brokerIP1=127.0.0.1\nlistenPort=0\nstorePathRootDir={tmp_path}/store\n"
        by_file, silent = tmp_path / "by-file.conf", tmp_path / "silent.conf"
        by_file.write_text(f"brokerName=by-file\nnamesrvAddr={address}\n{common}")
        silent.write_text(f"brokerName=by-environment\n{common}")
        for command, path in ((offline, by_file), (CommandLine(address), silent)):
            with running(command, "broker", "-c", str(path)):
                rows = CommandLine(address)("cluster", "list", "-o", "json").json()
                assert [row["broker"] for row in rows] == ["by-file" if path is by_file else "by-environment"]


@pytest.mark.parametrize(
    ("server", "text", "sentence"),
    [
        ("broker", "brokerName=a\nlistenPort=70000\n", "broker.conf:2: listenPort=70000: allowed is a whole number"),
        ("broker", "\nmessageDelayLevel=1s 5x\n", "broker.conf:2: messageDelayLevel=1s 5x: allowed is"),
        ("namesrv", "listenPort=-1\n", "namesrv.conf:1: listenPort=-1: allowed is a whole number from 0 to 65535"),
        ("broker", "storePathRootDir=C:\\users\n", "broker.conf: line 1: four hexadecimal digits must follow"),
    ],
    ids=["range", "delays", "negative", "escape"],
)
def test_a_value_with_which_no_server_starts_names_file_line_and_range(
    offline: CommandLine, tmp_path: Path, server: str, text: str, sentence: str
) -> None:
    conf = tmp_path / f"{server}.conf"
    conf.write_text(text)
    failed = offline(server, "-c", str(conf))
    assert failed.code == 1
    assert sentence in failed.err
    assert str(tmp_path) in failed.err


def test_a_value_that_apaches_broker_ignores_is_a_warning_at_the_start(offline: CommandLine, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"fileReservedTime=48 # hours\nlistenPort=0\nbrokerIP1=127.0.0.1\nstorePathRootDir={tmp_path}/s\n")
    process = offline.start("broker", "-c", str(conf), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert b"ready" in process.stdout.readline()
    process.terminate()
    assert b"broker.conf:1: fileReservedTime=48 # hours: allowed is a whole number" in process.communicate()[1]
    assert process.returncode == 0


def test_unknown_key_is_a_warning_that_names_the_nearest(offline: CommandLine, tmp_path: Path) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text(f"listenPrt=1\nlistenPort=0\nkvConfigPath={tmp_path}/kv.json\n")
    process = offline.start("namesrv", "-c", str(conf), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert b"ready" in process.stdout.readline()
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert f"{conf}:1: unknown key listenPrt ignored; did you mean listenPort?" in err.decode()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("listenPrt=1", "did you mean listenPort?"),
        ("listenPort=-1", "allowed is a whole number"),
        ("listenPort", "key=value"),
    ],
)
def test_bad_option_is_wrong_use(offline: CommandLine, setting: str, words: str) -> None:
    failed = offline("broker", "-o", setting)
    assert failed.code == 2
    assert words in failed.err


@pytest.mark.parametrize("server", ["broker", "namesrv"])
def test_help_config_is_a_configuration_file(offline: CommandLine, tmp_path: Path, server: str) -> None:
    printed = offline(server, "--help-config")
    assert printed.code == 0
    assert "\nlistenPort=" in printed.out
    conf = tmp_path / f"{server}.conf"
    conf.write_text(printed.out)
    listen = ("-o", "listenPort=0", "-o", "bindAddress=127.0.0.1")
    places = {"broker": f"storePathRootDir={tmp_path}/s", "namesrv": f"kvConfigPath={tmp_path}/kv.json"}
    with running(offline, server, "-c", str(conf), *listen, "-o", places[server]) as (process, _):
        process.terminate()
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert b"unknown key" not in process.stderr.read()


def test_a_missing_file_is_a_sentence(offline: CommandLine) -> None:
    failed = offline("broker", "-c", "/nowhere/broker.conf")
    assert failed.code == 1
    assert "/nowhere/broker.conf" in failed.err
    assert "Traceback" not in failed.err


def test_one_port_for_two_servers_is_wrong_use(offline: CommandLine, tmp_path: Path) -> None:
    failed = offline("serve", "--data", str(tmp_path), "--port", "9876", "--namesrv-port", "9876")
    assert failed.code == 2
    assert "are both 9876" in failed.err


def test_an_unusable_data_directory_is_a_sentence(offline: CommandLine, tmp_path: Path) -> None:
    occupied = tmp_path / "occupied"
    occupied.write_text("not a directory")
    failed = offline(*serve_arguments(occupied))
    assert failed.code == 2
    assert f"Directory '{occupied}' is a file." in failed.err.replace("\n", " ")


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        ("no-such-host.invalid", "the host name no-such-host.invalid does not resolve: "),
        ("192.0.2.77", "(this machine has no such address; 0.0.0.0 listens on all that it has)"),
    ],
)
def test_a_host_that_this_machine_lacks_is_named_with_the_next_step(
    offline: CommandLine, tmp_path: Path, host: str, sentence: str
) -> None:
    failed = offline(*serve_arguments(tmp_path, "--host", host))
    assert failed.code == 1
    assert sentence in failed.err.splitlines()[-1]
    assert "doctor" not in failed.err


def test_two_brokers_never_share_a_store(offline: CommandLine, tmp_path: Path) -> None:
    with running(offline, *serve_arguments(tmp_path)):
        failed = offline(*serve_arguments(tmp_path))
    assert failed.code == 1
    assert "bug" not in failed.err
    assert str(tmp_path) in failed.err


def test_serve_takes_little_room_in_the_users_data_directory(offline: CommandLine, tmp_path: Path) -> None:
    environment = {**offline.environment, "XDG_DATA_HOME": str(tmp_path / "share")}
    command = [sys.executable, "-m", "cometmq", "serve", "--port", "0", "--namesrv-port", "0", "--no-console"]
    here = tmp_path / "here"
    here.mkdir()
    old = tmp_path / "old"
    (old / "cometmq-data").mkdir(parents=True)
    for place, data in ((here, tmp_path / "share" / "cometmq"), (old, old / "cometmq-data")):
        process = subprocess.Popen(
            command, env=environment, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            ready = process.stdout.readline()
            namesrv = re.findall(r"nameserver ([0-9.:]+),", ready)[0]
            assert ready.endswith(f"data in {data}\n")
            assert process.stderr.readline() == f"Data in {data}: 0 bytes on the disk.\n"
            assert CommandLine(namesrv)("produce", "small", "--body", "x").code == 0
            taken = sum(file.stat().st_blocks for file in data.rglob("*")) * 512
            assert taken < 64_000_000
        finally:
            process.terminate()
            process.communicate(timeout=60)
    assert list(here.iterdir()) == []


def test_the_console_of_serve_is_a_process_that_takes_no_time_of_the_broker_comes_back_and_ends_with_serve(
    offline: CommandLine, tmp_path: Path
) -> None:
    with running(offline, *serve_arguments(tmp_path, "--no-metrics", "--no-grpc", console=True)) as (process, _):
        address = told(process, "Console at ")
        [console] = children_of(process.pid)
        before = processor_seconds(process.pid), processor_seconds(console)
        for _ in range(60):
            assert page_of(f"{address}/configuration").startswith("<!doctype html>")
        served, shown = processor_seconds(process.pid) - before[0], processor_seconds(console) - before[1]
        assert served <= shown / 4, "what the console asks the broker is all that the broker works for it"
        os.kill(console, signal.SIGKILL)
        assert page_of(f"{address}/healthz") == "ok\n", "a browser waits until the new one serves"
        [console] = children_of(process.pid)
        process.kill()
        process.wait()
        wait_for(lambda: not alive(console), "the console ends with the process that started it")


def page_of(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return str(answer.read().decode())


def processor_seconds(pid: int) -> float:
    """Processor time of the main thread of a process, which is its event loop."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def test_serve_goes_on_without_a_console_if_its_port_is_taken(offline: CommandLine, tmp_path: Path) -> None:
    arguments = serve_arguments(tmp_path, "--no-metrics", console=True)
    with taken_port() as port, running(offline, *arguments, "--console-port", str(port)) as (process, ready):
        assert ready.startswith("CometMQ ready")
        warning = "cometmq: warning: the console is not available: "
        assert f"port {port} for the console is in use" in told(process, warning)
        assert process.poll() is None


def told(process: subprocess.Popen[bytes], beginning: str) -> str:
    """Return the rest of the line of stderr that begins so."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.decode().startswith(beginning):
            return line.decode().removeprefix(beginning).strip()
    raise AssertionError(f"no line begins with {beginning!r}")


def test_users_of_the_console_are_made_listed_and_removed(offline: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("correct horse battery\n")
    data = ("--data", str(tmp_path))
    made = offline(
        "console", "user", "add", "otto", "--role", "operator", "--password-file", str(tmp_path / "password"), *data
    )
    assert (made.code, made.err) == (0, "User otto of the console is an operator.\n")
    assert "otto" in offline("console", "user", "list", *data).out
    assert offline("console", "user", "remove", "otto", *data).code == 0
    gone = offline("console", "user", "remove", "otto", *data)
    assert gone.code == 1
    assert "user otto does not exist" in gone.err
    refused = offline("console", "--host", "0.0.0.0", "--port", "0", "-n", "127.0.0.1:1", *data)
    assert refused.code == 1
    assert "open to every machine" in refused.err


@pytest.mark.parametrize("brokers", ["1", "2"])
def test_serve_begins_anew_without_its_log_only_when_it_is_told_to(
    offline: CommandLine, tmp_path: Path, brokers: str
) -> None:
    """The queues go on at their offsets, and the other broker, whose log is there, keeps its messages."""
    more = ("--brokers", brokers, *(("--port", str(free_port())) if brokers != "1" else ()))
    arguments = serve_arguments(tmp_path, *more, "--no-grpc", "--no-metrics")

    def ends(line: str) -> dict[tuple[str, int], tuple[int, int]]:
        rows = CommandLine(line.split()[3].rstrip(","))("topic", "stats", "wide", "-o", "json").json()
        return {(row["broker"], row["queue_id"]): (row["min_offset"], row["max_offset"]) for row in rows}

    with running(offline, *arguments) as (_, line):
        command = CommandLine(line.split()[3].rstrip(","))
        assert command("topic", "create", "wide", "--queues", "2").code == 0
        assert command("produce", "wide", "--count", "400", "--batch", "10").code == 0
        before = ends(line)
        assert all(end > 0 for _, end in before.values())
    shutil.rmtree(tmp_path / "broker-0" / "commitlog")
    refused = offline(*arguments)
    assert refused.code == 1
    assert "is missing or empty" in refused.err
    assert "--begin-anew" in refused.err
    with running(offline, *arguments, "--begin-anew") as (_, line):
        after = ends(line)
    assert {key: end for key, (_, end) in after.items()} == {key: end for key, (_, end) in before.items()}
    assert all(after[key] == extent for key, extent in before.items() if key[0] == "broker-1")
    with running(offline, *arguments) as (_, line):
        assert ends(line) == after
