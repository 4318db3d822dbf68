"""The client and the commands work where Unix's modules are missing, as on Windows."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from cometmq.testing import Cluster

PROGRAM = Path(__file__).with_name("without_unix.py")


async def test_the_client_sends_and_consumes_and_every_command_loads_without_unix() -> None:
    async with Cluster() as cluster:
        await cluster.create_topic("portable")
        command = (sys.executable, "-W", "error", str(PROGRAM), cluster.namesrv_address, "portable")
        pipe = asyncio.subprocess.PIPE
        program = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        out, errors = await program.communicate()
    assert (out, errors) == (b"from everywhere\n", b"")


def test_a_command_writes_its_contexts_without_unix(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(PROGRAM.parent)!r}); import without_unix; without_unix.hide_unix();"
        "from cometmq.cli.main import main; main(['context', 'create', 'home', '--namesrv', '127.0.0.1:9876'])"
    )
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "127.0.0.1:9876" in (tmp_path / "cometmq" / "contexts.json").read_text(encoding="utf-8")
