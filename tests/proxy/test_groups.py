"""The configuration of a group as the endpoint reads it, whatever tools have stored."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.proxy.backend.backend import GroupInfo
from cometmq.remoting.bodies import SubscriptionGroupConfig

POLICIES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "customized": ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_000, 5_000]}}, (1_000, 5_000)),
    "exponential": ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5_000}}, ()),
    "null": ({"customizedRetryPolicy": None}, ()),
    "no-list": ({"customizedRetryPolicy": {"next": 1_000}}, ()),
    "texts": ({"customizedRetryPolicy": {"next": ["soon"]}}, ()),
    "empty": ({}, ()),
}


@pytest.mark.parametrize(("policy", "pauses"), POLICIES.values(), ids=POLICIES)
def test_a_customized_policy_has_pauses_and_any_other_one_has_rocketmqs_levels(
    policy: dict[str, Any], pauses: tuple[int, ...]
) -> None:
    config = SubscriptionGroupConfig(group_name="G", retry_max_times=3, group_retry_policy=policy)
    assert GroupInfo.of(config) == GroupInfo(3, is_orderly=False, backoff_ms=pauses)


def test_a_group_is_orderly_only_if_its_configuration_says_so() -> None:
    assert not GroupInfo.of(SubscriptionGroupConfig(group_name="G")).is_orderly
    assert GroupInfo.of(SubscriptionGroupConfig(group_name="G", consume_message_orderly=True)).is_orderly
