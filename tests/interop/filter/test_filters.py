"""SQL92 subscriptions of real clients, and consumerFilter.json opened by both systems in turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.interop.clients import APACHE_CANNOT, PATIENCE_S, Client, Series, seen
from tests.interop.commands import CommandFailedError
from tests.interop.conftest import wanted_systems
from tests.interop.systems import BOTH, Deployment, System
from tests.interop.systems import deploy as deploy_system

pytestmark = pytest.mark.interop

GetClient = Callable[[str], Client]

WANTED = "kind = 'parcel' AND weight BETWEEN 3 AND 30 AND colour IN ('grün', 'red')"
NAMES = {"kind": "", "weight": "", "colour": ""}
CONSUMERS = [
    ("java4", "push"),
    ("java4", "litepull"),
    ("java4-binary", "push"),
    ("java5", "push"),
    ("java5", "litepull"),
    ("go", "push"),
]


def parcels(topic: str, weight: int, colour: str = "grün", kind: str = "parcel", first: int = 0) -> Series:
    properties = {"kind": kind, "weight": str(weight), "colour": colour}
    return Series(topic, 6, first, f"{kind} of {weight}", properties=properties)


@pytest.fixture(scope="module", params=wanted_systems(), ids=lambda system: system.value)
def filtering(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A nameserver and a broker that filters by properties."""
    deployment = deploy_system(request.param, tmp_path_factory.mktemp("filtering"), enablePropertyFilter="true")
    yield deployment
    deployment.close()


@pytest.mark.parametrize(("name", "mode"), CONSUMERS, ids=["-".join(each) for each in CONSUMERS])
def test_a_consumer_gets_what_its_expression_wants(
    filtering: Deployment, clients: GetClient, java: Client, name: str, mode: str
) -> None:
    if filtering.broker.system is System.APACHE and (name, mode) in APACHE_CANNOT:
        pytest.skip(APACHE_CANNOT[name, mode])
    topic = f"Filter-{name}-{mode}"
    java.create_topic(filtering.address, filtering.broker.address, topic)
    light, heavy = parcels(topic, 3), parcels(topic, 30, "red", first=100)
    for series in (
        light,
        parcels(topic, 31, first=200),
        parcels(topic, 5, "blue", first=300),
        parcels(topic, 5, kind="letter", first=400),
        heavy,
    ):
        java.produce(filtering.address, series)
    more = {"from": "first", "sql": WANTED, "mode": mode}
    expected = sorted(light.expected() + heavy.expected())
    running = clients(name).start_consuming(filtering.address, topic, f"group-{topic}", **more)
    running.wait_until(lambda: len(running.named("message")) >= 12, PATIENCE_S, "it receives what is there")
    later = parcels(topic, 7, "red", first=500)
    java.produce(filtering.address, parcels(topic, 7, "pink", first=600))
    java.produce(filtering.address, later)
    running.wait_until(lambda: len(running.named("message")) >= 18, PATIENCE_S, "it receives what arrives")
    running.stop()
    assert seen(running.named("message"), NAMES) == sorted(expected + later.expected())


@pytest.mark.parametrize("name", ["java4", "java5"])
def test_a_malformed_expression_is_refused_when_the_consumer_starts(
    filtering: Deployment, clients: GetClient, java: Client, name: str
) -> None:
    topic = f"Malformed-{name}"
    java.create_topic(filtering.address, filtering.broker.address, topic)
    running = clients(name).start_consuming(filtering.address, topic, f"group-{topic}", sql="weight > > 3")
    with pytest.raises(CommandFailedError) as raised:
        running.wait(PATIENCE_S)
    assert raised.value.code == 23
    words = "column 10" if filtering.broker.system is System.APACHE else "at character 10"
    assert words in raised.value.problem


@pytest.mark.parametrize("name", ["java4", "java5"])
def test_without_the_filter_a_consumer_by_sql_does_not_start(
    cluster: Deployment, clients: GetClient, topic: str, group: str, name: str
) -> None:
    running = clients(name).start_consuming(cluster.address, topic, group, sql="weight > 3")
    with pytest.raises(CommandFailedError) as raised:
        running.wait(PATIENCE_S)
    assert raised.value.code == 1
    assert "does not support consumer to filter message by SQL92" in raised.value.problem


def filter_data(deployment: Deployment) -> dict[str, dict[str, object]]:
    """The entries of consumerFilter.json by topic and group, without what only tells of time."""
    path = Path(deployment.broker.directory, "store", "config", "consumerFilter.json")
    try:
        text = path.read_text()
    except FileNotFoundError:  # Apache takes the old file away before it names the new one
        return {}
    return {
        f"{data['topic']} {data['consumerGroup']}": {
            key: value for key, value in data.items() if key not in ("dead", "deadTime")
        }
        for topic in json.loads(text)["filterDataByTopic"].values()
        for data in topic["groupFilterData"].values()
    }


@pytest.mark.parametrize("first", BOTH, ids=lambda system: f"{system.value}-first")
def test_filter_data_go_from_one_system_to_the_other_and_back(
    deploy: Callable[..., Deployment], java: Client, first: System
) -> None:
    second = System.COMETMQ if first is System.APACHE else System.APACHE
    deployment = deploy(first, namesrv=System.APACHE, enablePropertyFilter="true", autoCreateTopicEnable="false")
    java.create_topic(deployment.address, deployment.broker.address, "SwapFilter")
    entries: dict[str, dict[str, object]] = {}
    for number, system in enumerate((first, second, first)):
        if number:
            deployment.start_again(system)
        java.produce(deployment.address, parcels("SwapFilter", 3, first=number * 1_000))
        java.produce(deployment.address, parcels("SwapFilter", 99, first=number * 1_000 + 500))
        group = f"swap-{number}"
        got = java.consume(deployment.address, "SwapFilter", group, 6 * (number + 1), sql=WANTED, **{"from": "first"})
        assert len(seen(got)) == 6 * (number + 1)
        deployment.broker.stop()
        found = filter_data(deployment)
        assert found == entries | {(new := f"SwapFilter {group}"): found[new]}
        entries = found
    assert len(entries) == 3
    for data in entries.values():
        assert data["expression"] == WANTED
        assert data["bloomFilterData"]["bitNum"] == 112  # type: ignore[index]
