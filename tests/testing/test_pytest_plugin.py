"""The pytest plugin, in pytest runs of its own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]

ASYNC_TESTS = """
    import pytest
    from cometmq.client import Message, Producer
    from cometmq.clock import SYSTEM_CLOCK
    from cometmq.testing import VirtualClock

    {mark}

    @pytest.mark.cometmq(brokers=2, queues=3, broker_keys={{"fileReservedTime": "24"}})
    async def test_marked(cometmq_cluster, cometmq_topic, cometmq_clock):
        assert cometmq_cluster.clock is cometmq_clock
        assert isinstance(cometmq_clock, VirtualClock)
        assert cometmq_topic.startswith("test_marked-")
        route = cometmq_cluster.namesrv.routes.route(cometmq_topic)
        assert [data.write_queue_nums for data in route.queue_datas] == [3, 3]
        assert cometmq_cluster.broker(1).config.file_reserved_time == 24

    async def test_default(cometmq_cluster, cometmq_broker, cometmq_topic):
        assert cometmq_cluster.brokers == [cometmq_broker]
        async with cometmq_cluster.inbox(cometmq_topic) as inbox:
            async with Producer("p", instance=cometmq_cluster.client_instance()) as producer:
                await producer.send(Message(cometmq_topic, b"hello"))
            assert [message.body for message in await inbox.expect(1)] == [b"hello"]
            await inbox.expect_none(within=3600)
        assert sum(queue.max_offset() for queue in cometmq_broker.store.queues()[cometmq_topic].values()) == 1

    @pytest.mark.cometmq(real_time=True)
    async def test_real_time(cometmq_cluster, cometmq_clock):
        assert cometmq_cluster.clock is cometmq_clock is SYSTEM_CLOCK
"""

SYNC_TESTS = """
    import pytest
    from cometmq.client import Message
    from cometmq.client.sync import SyncProducer
    from cometmq.clock import SYSTEM_CLOCK
    from cometmq.testing import VirtualClock

    def test_real_time(cometmq_sync_cluster, cometmq_topic):
        assert cometmq_sync_cluster.clock is SYSTEM_CLOCK
        with cometmq_sync_cluster.inbox(cometmq_topic) as inbox:
            with SyncProducer("application", cometmq_sync_cluster.namesrv_address) as producer:
                producer.send(Message(cometmq_topic, b"hello"))
            assert [message.body for message in inbox.expect(1, within=30)] == [b"hello"]

    @pytest.mark.cometmq(real_time=False)
    def test_time_is_moved(cometmq_sync_cluster, cometmq_topic, cometmq_clock):
        began_ms = cometmq_clock.now_ms()
        with cometmq_sync_cluster.inbox(cometmq_topic) as inbox:
            cometmq_sync_cluster.run_for(600)
            cometmq_sync_cluster.skip(86_400)
            cometmq_sync_cluster.send(Message(cometmq_topic, b"late"))
            (message,) = inbox.expect(1)
            assert message.store_timestamp >= began_ms + 87_000_000
            cometmq_sync_cluster.kill_broker(0)
            cometmq_sync_cluster.start_broker(0)
            cometmq_sync_cluster.run_for(60)
            inbox.expect_none()
"""


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    if "no:asyncio" not in options:
        options += ("-o", "asyncio_default_fixture_loop_scope=function")
    return pytester.runpytest_subprocess("-p", "cometmq.pytest_plugin", "-p", "no:cacheprovider", "-Werror", *options)


def test_coroutines_with_pytest_asyncio_in_strict_mode(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ASYNC_TESTS.format(mark="pytestmark = pytest.mark.asyncio"))
    run(pytester, "--asyncio-mode=strict", "--strict-markers").assert_outcomes(passed=3)


def test_coroutines_with_pytest_asyncio_in_auto_mode_and_workers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ASYNC_TESTS.format(mark=""))
    run(pytester, "--asyncio-mode=auto", "-n2").assert_outcomes(passed=3)


def test_plain_functions_without_any_plugin_for_coroutines(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SYNC_TESTS)
    run(pytester, "-p", "no:asyncio").assert_outcomes(passed=2)


def test_wrong_use_says_what_to_do(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        def test_without_a_plugin(cometmq_cluster):
            pass

        @pytest.mark.cometmq(broker=2)
        def test_no_such_option(cometmq_sync_cluster):
            pass

        @pytest.mark.cometmq(broker_keys={"noSuchKey": "1"})
        def test_no_such_key(cometmq_sync_cluster):
            pass
    """)
    result = run(pytester, "-p", "no:asyncio")
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(
        [
            "*install pytest-asyncio, or use cometmq_sync_cluster*",
            "*unknown option of the marker cometmq: broker; use accounts, broker_keys, brokers, links, queues*",
            "*ConfigError: unknown broker key noSuchKey*",
        ]
    )


def test_failed_and_interrupted_tests_leave_nothing_behind(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile("""
        import pytest

        async def test_fails(cometmq_cluster, cometmq_topic):
            async with cometmq_cluster.inbox(cometmq_topic) as inbox:
                await inbox.expect(1)

        def test_fails_too(cometmq_sync_cluster, cometmq_topic):
            with cometmq_sync_cluster.inbox(cometmq_topic) as inbox:
                cometmq_sync_cluster.kill_broker(0)
                inbox.expect(1, within=0.2)

        def test_is_interrupted(cometmq_sync_cluster):
            raise KeyboardInterrupt
    """)
    pytester.makeconftest("""
        import gc, os, socket, tempfile, threading
        from pathlib import Path

        def claims_a_port(descriptor):
            # A name that lasts as long as the process: other processes do not take the ports of its servers.
            with socket.socket(fileno=os.dup(descriptor)) as held:
                return b"cometmq-port-" in (name if isinstance(name := held.getsockname(), bytes) else b"")

        def pytest_unconfigure(config):
            gc.collect()
            print("threads", sorted(t.name for t in threading.enumerate() if t.name.startswith("cometmq-cl")))
            print("directories", sorted(p.name for p in Path(tempfile.gettempdir()).glob("cometmq-*")))
            found = [p for p in Path("/proc/self/fd").iterdir() if p.is_symlink() and p.exists()]
            sockets = [int(p.name) for p in found if "socket" in p.readlink().name]
            print("sockets", sum(not claims_a_port(descriptor) for descriptor in sockets))
    """)
    directory = pytester.mkdir("tmp")
    monkeypatch.setenv("TMPDIR", str(directory))
    result = run(pytester, "--asyncio-mode=auto", "-s")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*KeyboardInterrupt*"])
    result.stdout.fnmatch_lines(["*1 message expected from test_fails-*none arrived:*"])
    result.stdout.fnmatch_lines(["*broker 0 is not running: see start_broker*"])
    result.stdout.fnmatch_lines(["*threads []*", "directories []*", "sockets 0*"])


def test_a_run_that_does_not_use_it_pays_nothing() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import pytest, sys; before = set(sys.modules); import cometmq.pytest_plugin; "
            "print(*sorted(set(sys.modules) - before))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["cometmq", "cometmq.pytest_plugin"]


def test_only_the_plugin_imports_pytest() -> None:
    for module in (ROOT / "src" / "cometmq").rglob("*.py"):
        if module.name != "pytest_plugin.py":
            assert "import pytest" not in module.read_text(), module


def test_it_is_announced_to_pytest_under_its_own_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ((name, module),) = project["entry-points"]["pytest11"].items()
    assert name == module
    assert import_module(module)
