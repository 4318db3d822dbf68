"""Every key of a nameserver that may change at run time takes effect at run time: one case for each of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterator

import pytest
from tests.namesrv.wire import Connect, Wire, topic

from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.options import options_of
from cometmq.remoting.admin_headers import PutKVConfigRequestHeader
from cometmq.remoting.headers import GetRouteInfoRequestHeader
from cometmq.testing import VirtualClock


async def order_of_the_route(wire: Wire, _connect: Connect, _clock: VirtualClock) -> str | None:
    await wire.call(100, PutKVConfigRequestHeader(namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4"))
    await wire.register(topics=topic("T"))
    found: dict[str, str] = json.loads((await wire.call(105, GetRouteInfoRequestHeader(topic="T"))).body)
    return found.get("orderTopicConf")


async def code_of_a_route_after_a_minute(wire: Wire, connect: Connect, clock: VirtualClock) -> int:
    await (await connect()).register(topics=topic("T"), counter=clock.now_ms())
    await clock.run_for(60)
    return (await wire.call(105, GetRouteInfoRequestHeader(topic="T"))).code


async def level_of_the_log(_wire: Wire, _connect: Connect, _clock: VirtualClock) -> int:
    return logging.getLogger("cometmq").level


Probe = Callable[[Wire, Connect, VirtualClock], Awaitable[object]]
EFFECTS: dict[str, tuple[str, object, object, Probe]] = {
    "logLevel": ("ERROR", logging.INFO, logging.ERROR, level_of_the_log),
    "orderMessageEnable": ("true", None, "broker-a:4", order_of_the_route),
    "brokerChannelExpiredTime": ("30000", 0, 17, code_of_a_route_after_a_minute),
}
"""A value, what is found before and after it is set, and where."""


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """The level of the log at the start, which the test leaves as it was."""
    logger = logging.getLogger("cometmq")
    level = logger.level
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(level)


def test_every_key_that_changes_at_run_time_has_a_case() -> None:
    assert EFFECTS.keys() == {key for key, found in options_of(NamesrvConfig).items() if found.runtime}


@pytest.mark.parametrize("key", EFFECTS)
async def test_a_key_takes_effect_at_run_time(
    log_level: None, server: NameServer, connect: Connect, clock: VirtualClock, key: str
) -> None:
    value, before, after, probe = EFFECTS[key]
    wire = await connect()
    assert await probe(wire, connect, clock) == before
    assert (await wire.call(318, body=f"{key}={value}".encode())).code == 0
    assert await probe(wire, connect, clock) == after
