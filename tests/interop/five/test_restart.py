"""Apache's Python and Node clients go on by themselves after the server that they use is killed and started again.

What a kill takes on its way to the client comes again after its time, which is a minute for push consumers;
``tests/crash/test_kill_under_grpc.py`` waits for such messages.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.interop import builds
from tests.interop.conftest import unavailable
from tests.interop.five import programs

from cometmq.client.admin import Admin
from cometmq.testing import ProcessCluster, free_port

pytestmark = pytest.mark.interop

KILLS = 2
EACH = 30


@pytest.mark.parametrize(
    "make",
    [partial(programs.python, "restart.py"), partial(programs.node, "restart.js")],
    ids=["python-5.1.2", "node-1.0.8"],
)
async def test_a_client_goes_on_after_kills(tmp_path: Path, make: Callable[[], list[str]]) -> None:
    try:
        command = make()
    except builds.ToolMissingError as problem:
        unavailable(problem)
    port = free_port("127.0.0.1")
    with ProcessCluster(broker_keys={"grpcServerPort": str(port)}) as cluster:
        async with Admin(cluster.namesrv_address) as admin:
            await admin.create_topic("Restart")
            await admin.create_topic("RestartToo")
        command += [f"127.0.0.1:{port}", "Restart"]
        environment = {**os.environ, "HOME": str(tmp_path)}
        with programs.running(command, environment, tmp_path / "errors") as (_, told):
            _wait_for_more(told)
            for _ in range(KILLS):
                cluster.kill_broker(0)
                cluster.start_broker(0)
                before = len(told.bodies("sent"))
                _wait_for_more(told)
            sent = set(told.bodies("sent")[before:])
            told.wait(lambda: sent <= set(told.bodies("got")), "all are consumed")
    again = Counter(told.bodies("got"))
    assert sum(times - 1 for times in again.values()) <= KILLS * 32  # of each kill what one receive had taken


def _wait_for_more(told: programs.Events) -> None:
    """Wait until the program has sent and consumed some more."""
    sent, got = (len(told.bodies(event)) + EACH for event in ("sent", "got"))
    told.wait(lambda: len(told.bodies("sent")) >= sent and len(told.bodies("got")) >= got, "it goes on")
