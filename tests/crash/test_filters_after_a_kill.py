"""SIGKILL of a broker with SQL92 consumers: its filters are there again, or come with the next heartbeat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.crash.loading import send
from tests.helpers.waiting import wait_for

from cometmq.message.record import iter_records
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.bodies import ConsumerData, HeartbeatData, SubscriptionData, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import NoHeader, PullMessageRequestHeader
from cometmq.testing import ProcessCluster

pytestmark = pytest.mark.crash

TOPIC = "Filtered"
WRITTEN_WITHIN_S = 40.0
"""Ten seconds, on a machine that is busy with other things."""


def heartbeat(connection: BlockingConnection, group: str, expression: str) -> None:
    subscription = SubscriptionData(topic=TOPIC, sub_string=expression, expression_type="SQL92", sub_version=7)
    data = ConsumerData(group_name=group, subscription_data_set=[subscription])
    body = encode_body(HeartbeatData(client_id=f"{group}@1", consumer_data_set=[data]))
    assert connection.invoke(RequestCode.HEART_BEAT, NoHeader(), body).code == ResponseCode.SUCCESS


def pull(connection: BlockingConnection, group: str) -> RemotingCommand:
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=TOPIC,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=0,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=7,
    )
    return connection.invoke(RequestCode.PULL_MESSAGE, header)


def stored(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    topics = json.loads(path.read_bytes())["filterDataByTopic"]
    return dict(topics[TOPIC]["groupFilterData"]) if TOPIC in topics else {}


def test_filters_are_there_after_a_kill() -> None:
    with ProcessCluster(broker_keys={"enablePropertyFilter": "true"}) as cluster:
        address = cluster.broker_addresses[0]
        path = cluster.store_root(0) / "config" / "consumerFilter.json"
        with BlockingConnection(address, 60) as connection:
            for number in range(100):
                send(connection, TOPIC, b"%d" % number, f"n\x01{number}")
            heartbeat(connection, "early", "n = 5")
            wait_for(lambda: "early" in stored(path), "the filter is written", WRITTEN_WITHIN_S)
            written = stored(path)["early"]
            heartbeat(connection, "late", "n > 97")
            cluster.kill_broker(0)
        assert stored(path) == {"early": written}

        cluster.start_broker(0)
        with BlockingConnection(address, 60) as connection:
            assert pull(connection, "early").code == ResponseCode.SUBSCRIPTION_NOT_EXIST
            for group, expression, expected in (("early", "n = 5", [b"5"]), ("late", "n > 97", [b"98", b"99"])):
                heartbeat(connection, group, expression)
                answer = pull(connection, group)
                assert answer.code == ResponseCode.SUCCESS
                assert [record.body for record in iter_records(answer.body)] == expected
            cluster.brokers[0].stop()
        after = stored(path)
        assert set(after) == {"early", "late"}
        assert after["early"]["bornTime"] == written["bornTime"], "it is the filter that was there before"
        assert after["early"]["dead"]
