"""The walks of the page about object stores run as printed, by a shell; only ports, directory and downloads differ."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed (pip install cometmq[iceberg])")
pytest.importorskip("obstore", reason="obstore is not installed (pip install cometmq[lake])")

from tests.helpers.code_blocks import ROOT, Block, blocks_of
from tests.storage.servers.seaweed import BUCKET, seaweed

from cometmq.client import Message
from cometmq.testing import SyncCluster, free_port

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PAGE = "docs/lake.md"
_AWS = """aws() {
    [ "$1 $3 $4" = "--endpoint-url s3 mb" ] || exit 2
    python -c 'import boto3, sys; boto3.client("s3", endpoint_url=sys.argv[1]).create_bucket(Bucket=sys.argv[2])' \\
        "$2" "${5#s3://}"
}"""
"""The one command of the AWS command line that the page uses."""


def section(title: str) -> list[Block]:
    """The code blocks below a heading."""
    lines = (ROOT / PAGE).read_text(encoding="utf-8").splitlines()
    begin = lines.index(f"## {title}") + 1
    end = next((number for number, line in enumerate(lines[begin:], begin) if line.startswith("## ")), len(lines))
    return [block for block in blocks_of(PAGE) if begin < block.line <= end]


def commands(block: Block, *left_out: str) -> str:
    """The commands of a block, without those that begin with these words, which must be there."""
    found = re.findall(r"^\$ (.*)$", block.code, re.MULTILINE)
    kept = [line for line in found if not line.startswith(left_out)]
    assert len(found) - len(kept) == len(left_out), found
    return "\n".join(kept)


def run(script: str, home: Path, namesrv: str) -> str:
    """Run a shell as the reader of the page does, with nothing of this process's credentials."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYICEBERG_"))}
    environment |= {"NAMESRV_ADDR": namesrv, "HOME": str(home), "AWS_DEFAULT_REGION": "us-east-1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=home,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout


def fill(cluster: SyncCluster) -> None:
    """Send twenty orders."""
    cluster.create_topic("orders", queues=2)
    for number in range(20):
        cluster.send(Message("orders", b"x", tags="paid" if number % 4 else "created"))


def test_a_first_archive_in_ten_minutes(tmp_path: Path) -> None:
    console, python = section("A first archive in ten minutes")
    keys = re.search(r"MINIO_ROOT_USER=(\S+) -e MINIO_ROOT_PASSWORD=(\S+)", console.code)
    assert keys is not None
    home, server = tmp_path / "home", tmp_path / "server"
    home.mkdir()
    server.mkdir()
    session = "from cometmq.spark import local_session\nspark = local_session()\n"
    first = commands(console, "pip install", "docker run")
    again = commands(console, "pip install", "docker run", "export", "aws")
    with seaweed(server, more_keys=[(keys[1], keys[2])]) as s3, SyncCluster() as cluster:
        fill(cluster)
        s3.client().delete_object(Bucket=BUCKET, Key="_ready")
        s3.client().delete_bucket(Bucket=BUCKET)
        (home / "read.py").write_text(session + python.code.replace("http://localhost:9000", s3.endpoint))
        script = "\n".join([_AWS, first, "python read.py", again]).replace("http://localhost:9000", s3.endpoint)
        printed = run(script, home, cluster.namesrv_address)
    assert re.search(r"paid\|\s*15\|", printed), printed
    assert re.search(r"created\|\s*5\|", printed), printed
    assert "s3://lake/orders" in printed


def test_a_table_in_a_rest_catalog_in_ten_minutes(tmp_path: Path) -> None:
    server, configuration, console = section("A table in a REST catalog in ten minutes")
    ports = {name: free_port() for name in ("8333", "8181")}
    others = ("master.port", "volume.port", "filer.port", "s3.port.grpc", "master.port.grpc", "volume.port.grpc")
    more = " ".join(f"-{name}={free_port()}" for name in (*others, "filer.port.grpc"))
    more += " -ip=127.0.0.1 -master.telemetry=false -s3.port.lance=0"

    def here(text: str) -> str:
        return re.sub(r"(?<=[:=])(8333|8181)\b", lambda port: str(ports[port[1]]), text)

    (tmp_path / ".pyiceberg.yaml").write_text(here(configuration.code))
    started = here(commands(server, "pip install"))
    assert started.count(" & sleep 10\n") == started.count(" -s3 ") == 1
    started = started.replace(" & sleep 10\n", " & trap 'kill -9 %1' EXIT; sleep 10\n").replace(
        " -s3 ", f" -s3 {more} "
    )
    script = f"{started}\n{here(commands(console))}".replace("/tmp/", f"{tmp_path}/")
    with SyncCluster() as cluster:
        fill(cluster)
        printed = run(script, tmp_path, cluster.namesrv_address)
    assert "iceberg://prod/shop.orders" in printed
    assert "storeTimestamp" in printed
    assert printed.splitlines()[-1] == "20"
