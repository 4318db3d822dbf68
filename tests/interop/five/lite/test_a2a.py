"""rocketmq-a2a, unmodified: agents answer each caller in its own lite topic, in a namespace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.helpers.waiting import run_to_end
from tests.interop import builds
from tests.interop.conftest import unavailable

from cometmq.client.sync import SyncAdmin
from cometmq.testing import ProcessCluster, free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).parent / "a2a" / "talk.py"
NAMESPACE = "agents"


def test_callers_receive_the_answers_to_their_own_tasks() -> None:
    try:
        environment = builds.python_a2a()
    except builds.ToolMissingError as problem:
        unavailable(problem)
    port = free_port("127.0.0.1")
    with ProcessCluster(broker_keys={"grpcServerPort": str(port)}) as cluster:
        with SyncAdmin(cluster.namesrv_address) as admin:
            admin.create_topic(f"{NAMESPACE}%Tasks", queues=2)
            for topic, groups in {"Answers": ("CallersAlice", "CallersBob"), "ServerAnswers": ("ServerGroup",)}.items():
                admin.create_lite_topic(f"{NAMESPACE}%{topic}")
                for group in groups:
                    admin.create_lite_group(f"{NAMESPACE}%{group}", f"{NAMESPACE}%{topic}")
        program = [str(environment / "bin" / "python"), str(PROGRAM), f"127.0.0.1:{port}", NAMESPACE]
        done = run_to_end(program, 240)
    assert done.returncode == 0, done.stderr[-3_000:]
    answers = json.loads(done.stdout)
    assert answers.keys() == {"Alice", "Bob"}
    for name, found in answers.items():
        echoes = [f"Echo: {name} {number}" for number in (0, 0, 1, 1, 2, 2)]  # each answer, and then its task
        assert [text for text, one in zip(echoes, found, strict=False) if text not in one] == []
        assert len(found) == 7
        assert f"Echo: {name} s" in found[-1]  # a stream
        assert "lastChunk" in found[-1]
