"""Servers of tests: none counts as started because another program answers at its port."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.interop.systems import System, start_namesrv

from cometmq.testing import free_port


def test_a_server_does_not_start_at_a_port_that_another_program_has(tmp_path: Path) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(RuntimeError, match=f"listens at 127.0.0.1:{port}"):
        start_namesrv(System.COMETMQ, tmp_path, port)
