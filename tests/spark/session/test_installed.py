"""``pip install 'cometmq[spark]'`` is enough for Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.helpers.fresh_environment import build_wheel, keep_promise

from cometmq.client import Message
from cometmq.client.sync import SyncProducer
from cometmq.testing import SyncCluster

pytestmark = pytest.mark.spark


def test_a_session_reads_a_topic_where_only_the_extra_is_installed(tmp_path: Path) -> None:
    with SyncCluster() as cluster:
        cluster.create_topic("Orders", 1)
        with SyncProducer("senders", cluster.namesrv_address) as producer:
            producer.send(Message("Orders", b"hello"))
        wheel = build_wheel(tmp_path / "wheel")
        environment = keep_promise(tmp_path, wheel, "spark", cluster.namesrv_address)
    assert not environment.packages & {"starlette", "uvicorn", "jinja2", "argon2-cffi", "h11", "pyyaml"}
