"""Free ports: nobody else gets those of a server that does not listen yet."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from cometmq.testing import free_port

DRAWN = "import random; random.seed(7); from cometmq.testing import free_port; print(free_port())"


@pytest.mark.skipif(sys.platform != "linux", reason="processes tell each other by abstract sockets")
def test_another_process_that_draws_the_same_number_gets_another_port() -> None:
    state = random.getstate()
    try:
        random.seed(7)
        first = free_port()
        random.seed(7)
        assert abs(free_port() - first) > 2
    finally:
        random.setstate(state)
    done = subprocess.run([sys.executable, "-c", DRAWN], capture_output=True, text=True, check=True)
    assert abs(int(done.stdout) - first) > 2


def test_more_ports_are_given_than_are_remembered() -> None:
    assert len({free_port() for _ in range(80)}) > 33
