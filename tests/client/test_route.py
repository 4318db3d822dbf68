from __future__ import annotations

import pytest

from cometmq.client.errors import ClientError
from cometmq.client.route import DEFAULT_NAMESRV, namesrv_addresses, route_of
from cometmq.remoting.bodies import BrokerData, QueueData, TopicRouteData


def route(*queues: QueueData, order: str | None = None) -> TopicRouteData:
    brokers = [
        BrokerData(cluster="c", broker_name="a", broker_addrs={0: "h:1", 1: "h:2"}),
        BrokerData(cluster="c", broker_name="b", broker_addrs={0: "h:3"}),
        BrokerData(cluster="c", broker_name="headless", broker_addrs={1: "h:4"}),
    ]
    return TopicRouteData(broker_datas=brokers, queue_datas=list(queues), order_topic_conf=order)


def queues(broker: str, perm: int = 6, write: int = 1, read: int = 1) -> QueueData:
    return QueueData(broker_name=broker, read_queue_nums=read, write_queue_nums=write, perm=perm)


def names(found: tuple[object, ...]) -> list[str]:
    return [f"{queue.broker_name}{queue.queue_id}" for queue in found]  # type: ignore[attr-defined]


def test_producers_write_to_masters_and_consumers_read_from_anyone() -> None:
    found = route_of("T", route(queues("b", write=2, read=3), queues("a"), queues("headless")))
    assert names(found.write_queues) == ["a0", "b0", "b1"]
    assert names(found.read_queues) == ["a0", "b0", "b1", "b2", "headless0"]


@pytest.mark.parametrize(
    ("perm", "write", "read"), [(6, ["a0"], ["a0"]), (4, [], ["a0"]), (2, ["a0"], []), (7, ["a0"], ["a0"])]
)
def test_permissions_decide(perm: int, write: list[str], read: list[str]) -> None:
    found = route_of("T", route(queues("a", perm)))
    assert (names(found.write_queues), names(found.read_queues)) == (write, read)


def test_an_order_topic_is_written_to_the_queues_that_its_configuration_names() -> None:
    found = route_of("T", route(queues("a", write=8, read=8), order="b:2;a:1"))
    assert names(found.write_queues) == ["b0", "b1", "a0"]
    assert len(found.read_queues) == 8


def test_nameservers_come_from_the_argument_the_environment_or_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert namesrv_addresses(None) == (DEFAULT_NAMESRV,)
    monkeypatch.setenv("NAMESRV_ADDR", "one:1;two:2")
    assert namesrv_addresses(None) == ("one:1", "two:2")
    assert namesrv_addresses(" three:3 ; four:4;") == ("three:3", "four:4")
    assert namesrv_addresses("http://mq.example.org:9876") == ("mq.example.org:9876",)
    for wrong in ("no-port", "https://host:9876", "http://host:9876/path"):
        with pytest.raises(ValueError, match="host:port"):
            namesrv_addresses(wrong)
    with pytest.raises(ValueError, match="no address"):
        namesrv_addresses(" ; ")


@pytest.mark.parametrize(
    "data",
    [
        route(queues("a", write=2**31 - 1)),
        route(queues("a", read=2**31 - 1)),
        route(queues("a"), order="a:999999999"),
        route(*(queues(f"b{number}", write=65_535) for number in range(100))),
    ],
    ids=["write", "read", "order", "brokers"],
)
def test_a_route_of_billions_of_queues_is_not_believed(data: TopicRouteData) -> None:
    with pytest.raises(ClientError, match="registered an impossible number of queues"):
        route_of("T", data)


def test_negative_and_odd_numbers_of_queues_are_none() -> None:
    found = route_of("T", route(queues("a", write=-5, read=-5), order=f"a:\u00b2;a:-1;a:{'9' * 5000};b:1"))
    assert (names(found.write_queues), found.read_queues) == (["b0"], ())
