"""mqadmin 5.5.0 sets each attribute of topics and groups that Apache 5.5.0 has, or is told the alternative."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.peers.test_mqadmin import MqAdmin
from tests.interop.systems import Deployment, System, deploy

from cometmq.client.sync import SyncAdmin

pytestmark = pytest.mark.interop

TOPICS = {
    "queue.type": "SimpleCQ",
    "cleanup.policy": "DELETE",
    "message.type": "LITE",
    "reserve.time": "72",
    "lite.topic.expiration": "43200",
}
"""The names of ``TopicAttributes`` of 5.5.0."""
GROUPS = {
    "priority.factor": "50",
    "lite.bind.topic": "Sessions",
    "lite.sub.model": "Exclusive",
    "lite.sub.reset.offset.exclusive": "true",
    "lite.sub.reset.offset.unsubscribe": "true",
    "lite.sub.client.quota": "-1",
    "lite.sub.client.max.event.cnt": "10",
    "lite.sub.wildcard": "false",
}
"""The names of ``SubscriptionGroupAttributes`` of 5.5.0."""


@pytest.fixture(scope="module", params=[System.COMETMQ, System.APACHE55], ids=lambda system: system.value)
def running(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Deployment]:
    deployment = deploy(request.param, tmp_path_factory.mktemp("attributes"))
    yield deployment
    deployment.close()


def added(attributes: dict[str, str]) -> str:
    return ",".join(f"+{name}={value}" for name, value in attributes.items())


def test_mqadmin_sets_each_attribute(running: Deployment, tmp_path: Path) -> None:
    where = ("-c", "DefaultCluster", "-n", running.address)
    with MqAdmin("5.5.0", tmp_path) as mqadmin, SyncAdmin(running.address) as admin:
        for number, (name, value) in enumerate(TOPICS.items()):
            output, errors = mqadmin("updateTopic", "-t", f"One{number}", "-a", f"+{name}={value}", *where)
            assert "success" in output, (name, output, errors)
            assert admin.topic_configs(running.broker.address)[f"One{number}"].attributes == {name: value}
        mqadmin("updateTopic", "-t", "Sessions", "-a", added(TOPICS), *where)
        assert admin.topic_configs(running.broker.address)["Sessions"].attributes == TOPICS
        mqadmin("updateTopic", "-t", "Sessions", "-a", "+message.type=LITE,-reserve.time", *where)
        left = admin.topic_configs(running.broker.address)["Sessions"].attributes or {}
        assert left.keys() == TOPICS.keys() - {"reserve.time"}
        mqadmin("updateSubGroup", "-g", "agents", "--attributes", added(GROUPS), *where)
        assert admin.groups(running.broker.address)["agents"].attributes == GROUPS


@pytest.mark.parametrize("running", [System.COMETMQ], indirect=True)
def test_mqadmin_shows_why_compaction_and_static_topics_are_refused(running: Deployment, tmp_path: Path) -> None:
    where = ("-c", "DefaultCluster", "-n", running.address)
    with MqAdmin("5.5.0", tmp_path) as mqadmin, SyncAdmin(running.address) as admin:
        shown = "".join(mqadmin("updateTopic", "-t", "Compact", "-a", "+cleanup.policy=COMPACTION", *where))
        assert "cleanup.policy=COMPACTION is not supported: an archive with a key index" in shown, shown
        shown = "".join(mqadmin("updateStaticTopic", "-t", "Static", "-qn", "2", *where))
        assert "static topics are not supported: add brokers" in shown, shown
        assert not {"Compact", "Static"} & set(admin.topics())
