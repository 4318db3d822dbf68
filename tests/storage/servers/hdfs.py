"""HDFS in one process, by Hadoop's own mini cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.builds import QUICK_JAVA, java
from tests.storage.servers.builds import hadoop
from tests.storage.servers.process import server

from cometmq.testing.ports import free_port

_MAIN = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"


@contextmanager
def hdfs(directory: Path) -> Iterator[str]:
    """Run a name node and a data node inside the block; provide the URL."""
    port, web = free_port(), free_port()
    command = [
        java(), *QUICK_JAVA, "-Xmx256m", f"-Dtest.build.data={directory}", "-cp", f"{hadoop() / 'lib'}/*", _MAIN,
        "-nomr", "-format", "-datanodes", "1", "-nnport", str(port), "-nnhttpport", str(web),
        "-writeDetails", str(directory / "details.json"),
    ]  # fmt: skip
    with server(command, directory, [port, web]):
        from tests.helpers.waiting import wait_for

        wait_for((directory / "details.json").exists, "HDFS is ready")
        yield f"hdfs://127.0.0.1:{port}"
