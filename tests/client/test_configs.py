"""Options of the clients: what is out of its range is refused by name."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from cometmq.client.consumer.config import LitePullConfig, PushConfig
from cometmq.client.lite.config import LiteTopicConfig
from cometmq.client.send.config import ProducerConfig
from cometmq.client.simple.config import SimpleConsumerConfig


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (ProducerConfig, "max_in_flight", 0),
        (ProducerConfig, "retry_times_when_send_failed", -1),
        (PushConfig, "pull_batch_size", 0),
        (PushConfig, "consume_concurrency", 0),
        (PushConfig, "handover_wait_s", -0.1),
        (LitePullConfig, "pull_wait_s", -1),
        (LiteTopicConfig, "invisible_s", 0),
        (LiteTopicConfig, "retry_s", -1),
        (SimpleConsumerConfig, "wait_s", -1),
        (LitePullConfig, "max_poll_messages", 0),
        (LitePullConfig, "auto_commit_interval_s", -1),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(kind: Any, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} must "):
        kind(**{name: value})


CONFIGS = (ProducerConfig, PushConfig, LitePullConfig, LiteTopicConfig, SimpleConsumerConfig)


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_page_about_the_client_lists_every_option(kind: Any) -> None:
    page = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
    listed = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert {field.name for field in dataclasses.fields(kind)} <= listed
    known = {field.name for every in CONFIGS for field in dataclasses.fields(every)}
    assert {name for name in listed if name.islower()} <= known
