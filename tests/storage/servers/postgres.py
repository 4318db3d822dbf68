"""PostgreSQL, as Debian packages it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.builds import tool
from tests.storage.servers.process import server

from cometmq.testing.ports import free_port

_NOBODY = 65534
"""PostgreSQL does not run as root."""


@contextmanager
def postgres() -> Iterator[str]:
    """Run a server with one database inside the block; provide its URL for SQLAlchemy."""
    programs = [tool("initdb"), tool("postgres")]
    is_root = os.geteuid() == 0
    prefix = [tool("setpriv"), f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"] if is_root else []
    directory = Path(tempfile.mkdtemp(prefix="postgres-"))  # below /tmp, which other users can read
    try:
        if is_root:
            os.chown(directory, _NOBODY, _NOBODY)
        data, port = directory / "data", free_port()
        made = [*prefix, programs[0], "-D", str(data), "-A", "trust", "-U", "lake", "--locale=C", "--no-sync"]
        subprocess.run([*made, "-E", "UTF8"], check=True, capture_output=True, cwd=directory)
        command = [*prefix, programs[1], "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", "", "-F"]
        command += ["-c", "dynamic_shared_memory_type=mmap"]  # posix would leave a file in memory when it is killed
        with server(command, directory, [port]):
            yield f"postgresql+psycopg2://lake@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(directory, ignore_errors=True)
