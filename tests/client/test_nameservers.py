"""The choice of the nameserver that is asked, fed with answers and failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from cometmq.client.errors import BrokerError
from cometmq.client.machines import run
from cometmq.client.route import OTHER_NAMESRV_TIMEOUT_S, Ask, Nameservers
from cometmq.clock import SYSTEM_CLOCK
from cometmq.remoting.bodies import TopicRouteData, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.errors import RemotingError
from cometmq.remoting.headers import GetRouteInfoRequestHeader

ROUTE = encode_body(TopicRouteData())
Send = Callable[[Ask], list[RemotingCommand]]


def servers(known: Mapping[str, frozenset[str] | None], asked: list[Ask]) -> Send:
    """Nameservers by address, each with the topics that it knows; None for one that does not answer."""

    def send(ask: Ask) -> list[RemotingCommand]:
        asked.append(ask)
        topics = known[ask.address]
        if topics is None:
            raise RemotingError(ask.address, f"{ask.address} is silent")
        codes = []
        for _, header in ask.requests:
            assert isinstance(header, GetRouteInfoRequestHeader)
            codes.append(ResponseCode.SUCCESS if header.topic in topics else ResponseCode.TOPIC_NOT_EXIST)
        return [RemotingCommand(code, body=ROUTE if code == ResponseCode.SUCCESS else b"") for code in codes]

    return send


def test_the_one_that_answered_last_is_asked_first() -> None:
    asked: list[Ask] = []
    send = servers({"a": None, "b": frozenset("T"), "c": None}, asked)
    nameservers = Nameservers(("a", "b", "c"), SYSTEM_CLOCK)
    for _ in range(2):
        assert run(nameservers.routes(["T"], 6.0), send) == [TopicRouteData()]
    assert [ask.address for ask in asked] == ["a", "b", "b"]
    shares_s = [pytest.approx(seconds, abs=0.5) for seconds in (2.0, 3.0, 2.0)]
    assert [ask.timeout_s for ask in asked] == shares_s, "each has its share of the time that is left"


def test_when_all_are_silent_the_error_names_each() -> None:
    asked: list[Ask] = []
    with pytest.raises(RemotingError, match=r"^b is silent; a is silent$"):
        run(Nameservers(("a", "b"), SYSTEM_CLOCK, first=1).routes(["T"], 1.0), servers({"a": None, "b": None}, asked))
    assert [ask.address for ask in asked] == ["b", "a"]


def test_others_are_asked_for_the_topics_that_the_first_does_not_know() -> None:
    asked: list[Ask] = []
    send = servers({"a": frozenset("T"), "b": None, "c": frozenset("U"), "d": frozenset("TUV")}, asked)
    nameservers = Nameservers(("a", "b", "c", "d"), SYSTEM_CLOCK)
    assert run(nameservers.routes(["T", "U", "V", "W"], 1.0), send) == [*[TopicRouteData()] * 3, None]
    assert [(ask.address, len(ask.requests)) for ask in asked] == [("a", 4), ("b", 3), ("c", 3), ("d", 2)]
    assert {ask.timeout_s for ask in asked[1:]} == {OTHER_NAMESRV_TIMEOUT_S}


def test_a_refusal_names_the_nameserver_and_the_topic() -> None:
    def send(ask: Ask) -> list[RemotingCommand]:
        return [RemotingCommand(ResponseCode.SYSTEM_ERROR, remark="no memory") for _ in ask.requests]

    with pytest.raises(BrokerError, match="requesting the route of T: a answered 1 SYSTEM_ERROR: no memory"):
        run(Nameservers(("a",), SYSTEM_CLOCK).routes(["T"], 1.0), send)
    with pytest.raises(BrokerError, match="a answered 1 SYSTEM_ERROR: no memory"):
        run(Nameservers(("a",), SYSTEM_CLOCK).body(RequestCode.GET_BROKER_CLUSTER_INFO, TopicRouteData, 1.0), send)
