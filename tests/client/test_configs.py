"""Options of the clients: what is out of its range is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.client.consumer_config import LitePullConfig, PushConfig
from cometmq.client.producer_config import ProducerConfig


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (ProducerConfig, "max_in_flight", 0),
        (ProducerConfig, "retry_times", -1),
        (PushConfig, "pull_batch_size", 0),
        (PushConfig, "consume_concurrency", 0),
        (PushConfig, "handover_wait_s", -0.1),
        (LitePullConfig, "pull_wait_s", -1),
        (LitePullConfig, "max_poll_messages", 0),
        (LitePullConfig, "auto_commit_interval_s", -1),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(kind: Any, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} must "):
        kind(**{name: value})
