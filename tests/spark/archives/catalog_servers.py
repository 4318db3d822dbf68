"""Catalogs of Iceberg tables on servers: SQLite, PostgreSQL, Iceberg REST by SeaweedFS, Hive, and Glue by moto."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.storage.servers.hive import hive
from tests.storage.servers.postgres import postgres
from tests.storage.servers.seaweed import ACCESS_KEY, SECRET_KEY, TABLE_BUCKET, seaweed

from cometmq.spark.archives.table import ICEBERG, TableFormat

KINDS = ("sqlite", "postgres", "rest", "hive", "glue")
_REGION = "us-east-1"


@dataclass(frozen=True)
class Lake:
    """A catalog, and a table in it."""

    name: str
    properties: Mapping[str, str]
    table: str = ""

    def named(self, table: str) -> Lake:
        """The same catalog with another table."""
        return replace(self, table=table)

    @property
    def format(self) -> TableFormat:
        """The table whose location the catalog chooses."""
        return TableFormat(ICEBERG, self.name, self.table, self.properties)

    def load(self) -> Any:
        """The table as pyiceberg reads it, without CometMQ."""
        from pyiceberg.catalog import load_catalog

        return load_catalog(self.name, **self.properties).load_table(self.table)


@contextmanager
def start_catalog(kind: str, directory: Path) -> Iterator[Lake]:
    """Run the server of a catalog inside the block."""
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed (pip install cometmq[iceberg])")
    warehouse = f"file://{directory}/warehouse"
    if kind == "sqlite":
        yield Lake(kind, {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": warehouse})
    elif kind == "postgres":
        pytest.importorskip("psycopg2", reason="psycopg2 is not installed (pip install cometmq[postgres])")
        with postgres() as url:
            yield Lake(kind, {"type": "sql", "uri": url, "warehouse": warehouse})
    elif kind == "hive":
        pytest.importorskip("thrift", reason="thrift is not installed (pip install cometmq[hive])")
        with hive(directory) as url:
            yield Lake(kind, {"type": "hive", "uri": url, "warehouse": warehouse, "hive.hive2-compatible": "true"})
    elif kind == "rest":
        with seaweed(directory, with_catalog=True) as server:
            yield Lake(
                kind,
                {
                    "type": "rest",
                    "uri": server.iceberg,
                    "warehouse": f"s3://{TABLE_BUCKET}/",
                    "oauth2-server-uri": f"{server.iceberg}/v1/oauth/tokens",
                    "credential": f"{ACCESS_KEY}:{SECRET_KEY}",
                    "s3.endpoint": server.endpoint,
                    "s3.access-key-id": ACCESS_KEY,
                    "s3.secret-access-key": SECRET_KEY,
                    "s3.region": _REGION,
                },
            )
    else:
        from moto.server import ThreadedMotoServer

        glue = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        glue.start()
        try:
            host, port = glue.get_host_and_port()
            given = {"glue.endpoint": f"http://{host}:{port}", "glue.region": _REGION}
            keys = {"glue.access-key-id": "test", "glue.secret-access-key": "glue-secret"}
            yield Lake(kind, {"type": "glue", "warehouse": warehouse, **given, **keys})
        finally:
            glue.stop()
