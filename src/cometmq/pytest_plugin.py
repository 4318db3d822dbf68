"""pytest fixtures: a real cluster inside a test, with a clock that tests can move (see ``docs/testing.md``).

pytest imports this module in every run in which CometMQ is installed, so this module imports nothing else from CometMQ
until a test requests a fixture. Tests are configured with a marker::

    @pytest.mark.cometmq(brokers=2, queues=8, broker_keys={"flushDiskType": "SYNC_FLUSH"}, real_time=True)
"""

from __future__ import annotations

import inspect
import itertools
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from cometmq.broker.controller import Broker
    from cometmq.clock import Clock
    from cometmq.testing import Cluster, SyncCluster

_MARKER_LINE: Final = (
    "cometmq(brokers=1, replicas=0, slaves=0, queues=4, broker_keys={}, real_time=None, links=False, tls=False, "
    "accounts=None): the cluster of a test"
)
_OF_CLUSTER: Final = ("slaves", "broker_keys", "links", "tls", "accounts", "replicas")
"""The marker's options that have the same names in :class:`~cometmq.testing.Cluster`."""
_OPTIONS: Final = frozenset({"brokers", "queues", "real_time", *_OF_CLUSTER})
_NAME_CHARS: Final = 60
_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's settings in ``pytest.ini``."""
    parser.addini("cometmq_brokers", "brokers of a test's CometMQ cluster", default="1")
    parser.addini("cometmq_queues", "queues of a test's topic on each broker", default="4")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; for coroutines, also register the fixture with their plugin's decorator."""
    config.addinivalue_line("markers", _MARKER_LINE)
    coroutines = ModuleType("cometmq.pytest_plugin.coroutines")
    coroutines.cometmq_cluster = _async_fixture(config)(_cluster)  # type: ignore[attr-defined]
    config.pluginmanager.register(coroutines, coroutines.__name__)


def _async_fixture(config: pytest.Config) -> Callable[[Any], Any]:
    if config.pluginmanager.hasplugin("asyncio"):
        import pytest_asyncio  # with the plugin's decorator, the fixture also works in strict mode

        return pytest_asyncio.fixture(name="cometmq_cluster")
    return _needs_a_plugin


def _needs_a_plugin(_: object) -> object:
    @pytest.fixture(name="cometmq_cluster")
    def refuse() -> None:
        """A CometMQ cluster on the test's own event loop."""
        pytest.fail(
            "cometmq_cluster runs on the event loop of the test: install pytest-asyncio, "
            "or use cometmq_sync_cluster in a test without async",
            pytrace=False,
        )

    return refuse


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Replace the cancellation of a stalled test with an error that gives the reason."""
    try:
        return (yield)
    except BaseException as error:
        stalled = getattr(pyfuncitem.funcargs.get("cometmq_cluster"), "stalled", None)
        if stalled is not None and type(error).__name__ == "CancelledError":
            raise stalled.with_traceback(error.__traceback__) from None
        raise


# --- fixtures ---------------------------------------------------------------------------------
@pytest.fixture
def cometmq_topic(request: pytest.FixtureRequest) -> str:
    """The name of the test's own topic in the cluster."""
    name = re.sub("[^a-zA-Z0-9_-]", "_", request.node.name)[:_NAME_CHARS]
    return f"{name}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def cometmq_clock(request: pytest.FixtureRequest) -> Clock:
    """The cluster's clock: a VirtualClock in coroutines, the real clock elsewhere, unless ``real_time`` is set."""
    from cometmq.clock import SYSTEM_CLOCK

    try:
        from cometmq.testing.clock import VirtualClock
    except ModuleNotFoundError as error:
        pytest.fail(str(error), pytrace=False)
    real_time = _options(request)["real_time"]
    if real_time is None:
        real_time = not inspect.iscoroutinefunction(request.function)
    return SYSTEM_CLOCK if real_time else VirtualClock()


async def _cluster(request: pytest.FixtureRequest, cometmq_clock: Clock, cometmq_topic: str) -> AsyncIterator[Cluster]:
    """A CometMQ cluster on the test's own event loop."""
    from cometmq.testing import Cluster

    options = _options(request)
    kind = {name: options[name] for name in _OF_CLUSTER}
    async with Cluster(options["brokers"], clock=cometmq_clock, **kind) as cluster:
        await cluster.create_topic(cometmq_topic, options["queues"])
        yield cluster


@pytest.fixture
def cometmq_broker(cometmq_cluster: Cluster) -> Broker:
    """The first broker of the test's cluster, with its store, topics, groups and offsets."""
    return cometmq_cluster.broker(0)


@pytest.fixture
def cometmq_sync_cluster(
    request: pytest.FixtureRequest, cometmq_clock: Clock, cometmq_topic: str
) -> Iterator[SyncCluster]:
    """A CometMQ cluster in a thread, for tests that are not coroutines."""
    from cometmq.testing import SyncCluster

    options = _options(request)
    kind = {name: options[name] for name in _OF_CLUSTER}
    with SyncCluster(options["brokers"], clock=cometmq_clock, **kind) as cluster:
        cluster.create_topic(cometmq_topic, options["queues"])
        yield cluster


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the options from the ini file, overridden by the markers of the module, the class and the test."""
    found: dict[str, Any] = {
        "brokers": int(request.config.getini("cometmq_brokers")),
        "queues": int(request.config.getini("cometmq_queues")),
        "slaves": 0,
        "replicas": 0,
        "broker_keys": {},
        "real_time": None,
        "links": False,
        "tls": False,
        "accounts": None,
    }
    for marker in reversed(list(request.node.iter_markers("cometmq"))):
        unknown = sorted(marker.kwargs.keys() - _OPTIONS)
        if unknown or marker.args:
            pytest.fail(
                f"unknown option of the marker cometmq: {', '.join(unknown) or repr(marker.args[0])}; "
                f"use {', '.join(sorted(_OPTIONS))}",
                pytrace=False,
            )
        keys: Mapping[str, str] = marker.kwargs.get("broker_keys", {})
        found |= marker.kwargs | {"broker_keys": {**found["broker_keys"], **keys}}
    return found
