"""Hive's metastore 2.3, from the jars that PySpark contains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.builds import QUICK_JAVA, java
from tests.storage.servers.process import server

from cometmq.testing.ports import free_port

_SOURCE = Path(__file__).parent / "hive" / "Metastore.java"


@contextmanager
def hive(directory: Path) -> Iterator[str]:
    """Run a metastore inside the block; provide its URL."""
    import pyspark

    jars, port = Path(pyspark.__file__).parent / "jars", free_port()
    opens = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "net")]
    command = [java(), *QUICK_JAVA, "-Xmx192m", *opens, "-cp", f"{jars}/*", str(_SOURCE), str(port), str(directory)]
    with server(command, directory, [port]):
        yield f"thrift://127.0.0.1:{port}"
