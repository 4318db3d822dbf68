"""Changes to the attributes of groups over the wire, with Apache's rules and texts."""

from __future__ import annotations

import json

import pytest
from tests.broker.wire import Wire

from cometmq.broker.controller import Broker
from cometmq.broker.tables.group_attributes import LiteGroup
from cometmq.remoting.admin_headers import GetSubscriptionGroupConfigRequestHeader
from cometmq.remoting.bodies import SubscriptionGroupConfig, encode_body
from cometmq.remoting.codes import RequestCode

GROUP = "readers"


async def change(wire: Wire, **attributes: str) -> str | None:
    """Change the attributes of the group, with ``set_`` and ``drop_`` for the signs; return the remark of a refusal."""
    change = {
        name.replace("set_", "+").replace("drop_", "-").replace("_", "."): value for name, value in attributes.items()
    }
    body = encode_body(SubscriptionGroupConfig(group_name=GROUP, attributes=change))
    answer = await wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    return answer.remark if answer.code else None


async def attributes_of(wire: Wire) -> dict[str, str]:
    header = GetSubscriptionGroupConfigRequestHeader(group=GROUP)
    answer = await wire.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
    found: dict[str, str] = json.loads(answer.body).get("attributes", {}) if answer.code == 0 else {}
    return found


async def test_attributes_are_set_and_removed_one_by_one(wire: Wire, broker: Broker) -> None:
    assert await change(wire, set_lite_bind_topic="Parent", set_lite_sub_model="Exclusive") is None
    assert await change(wire, set_lite_sub_client_quota="7", set_lite_sub_wildcard="true") is None
    assert LiteGroup.of(broker.groups.get(GROUP)) == LiteGroup("Parent", True, False, False, 7, True)
    assert await change(wire, drop_lite_sub_model="", drop_lite_sub_wildcard="") is None
    assert await attributes_of(wire) == {"lite.bind.topic": "Parent", "lite.sub.client.quota": "7"}
    assert LiteGroup.of(broker.groups.get(GROUP)) == LiteGroup("Parent", client_quota=7)


async def test_a_change_of_other_settings_keeps_the_attributes(wire: Wire) -> None:
    await change(wire, set_lite_bind_topic="Parent")
    assert await change(wire) is None
    assert await attributes_of(wire) == {"lite.bind.topic": "Parent"}


async def test_settings_from_a_file_replace_the_attributes(wire: Wire) -> None:
    await change(wire, set_lite_bind_topic="Parent")
    assert await change(wire, lite_sub_model="Shared", note="any text") is None
    assert await attributes_of(wire) == {"lite.sub.model": "Shared", "note": "any text"}


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"drop_lite_bind_topic": ""}, "only add attribute is supported while creating subscription group"),
        ({"set_lite_sub_model": "Both"}, "value is not in set: [Shared, Exclusive]"),
        ({"lite_sub_model": "Both"}, "value is not in set: [Shared, Exclusive]"),
        ({"set_lite_sub_wildcard": "yes"}, "value is not in set: [true, false]"),
        ({"set_lite_sub_client_quota": "many"}, 'For input string: "many"'),
        ({"set_lite_sub_client_max_event_cnt": "9"}, "value is not in range(10, 9223372036854775807)"),
        ({"set_color": "red"}, "unsupported key: color"),
        ({"set_lite_bind_topic": "x" * 5_000}, "the attributes have more than 4096 characters"),
    ],
)
async def test_wrong_attributes_are_refused(wire: Wire, attributes: dict[str, str], words: str) -> None:
    remark = await change(wire, **attributes)
    assert remark is not None
    assert remark.startswith(words)
    assert await attributes_of(wire) == {}
