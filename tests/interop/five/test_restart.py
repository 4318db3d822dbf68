"""Apache's Python and Node clients go on by themselves after the server that they use is killed and started again.

What a kill takes on its way to the client comes again after its time, which is a minute for push consumers;
``tests/crash/test_kill_under_grpc.py`` waits for such messages.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.interop import builds
from tests.interop.conftest import unavailable

from cometmq.client.admin import Admin
from cometmq.testing import ProcessCluster, free_port

pytestmark = pytest.mark.interop

KILLS = 2
EACH = 30
PATIENCE_S = 60


def _python() -> list[str]:
    program = Path(__file__).parent / "python" / "restart.py"
    return [str(builds.python_client_five() / "bin" / "python"), str(program)]


def _node() -> list[str]:
    return ["node", str(builds.node_client_five() / "restart.js")]


class Told:
    """What the program tells."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.sent: list[str] = []
        self.got: list[str] = []

    def read(self, process: subprocess.Popen[str]) -> None:
        """Read its lines until it ends."""
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith('{"event"'):
                found = json.loads(line)
                with self._changed:
                    (self.sent if found["event"] == "sent" else self.got).append(found["body"])
                    self._changed.notify_all()

    def wait_for_more(self) -> None:
        """Wait until the program has sent and consumed some more."""
        with self._changed:
            sent, got = len(self.sent) + EACH, len(self.got) + EACH
            done = self._changed.wait_for(lambda: len(self.sent) >= sent and len(self.got) >= got, PATIENCE_S)
            assert done, f"it stands still: {sent - len(self.sent)} to send, {got - len(self.got)} to consume"

    def wait_for_all(self, sent: set[str]) -> None:
        """Wait until it has consumed these."""
        with self._changed:
            self._changed.wait_for(lambda: sent <= set(self.got), PATIENCE_S)
            assert sent <= set(self.got), sent - set(self.got)


@pytest.mark.parametrize("make", [_python, _node], ids=["python-5.1.2", "node-1.0.8"])
async def test_a_client_goes_on_after_kills(tmp_path: Path, make: Callable[[], list[str]]) -> None:
    try:
        command = make()
    except builds.ToolMissingError as problem:
        unavailable(problem)
    port = free_port("127.0.0.1")
    with ProcessCluster(broker_keys={"grpcServerPort": str(port)}) as cluster:
        async with Admin(cluster.namesrv_address) as admin:
            await admin.create_topic("Restart")
        told = Told()
        environment = {**os.environ, "HOME": str(tmp_path)}
        with (tmp_path / "errors").open("w") as errors:
            process = subprocess.Popen(
                [*command, f"127.0.0.1:{port}", "Restart"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        reader = threading.Thread(target=told.read, args=(process,))
        reader.start()
        try:
            told.wait_for_more()
            for _ in range(KILLS):
                cluster.kill_broker(0)
                cluster.start_broker(0)
                before = len(told.sent)
                told.wait_for_more()
            told.wait_for_all(set(told.sent[before:]))
        finally:
            process.kill()
            reader.join()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
    again = Counter(told.got)
    assert sum(times - 1 for times in again.values()) <= KILLS * 32  # of each kill what one receive had taken
