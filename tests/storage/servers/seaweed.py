"""SeaweedFS, an S3 server in one program."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.waiting import wait_for
from tests.storage.servers.process import server

from cometmq.storage import StorageOptions
from cometmq.testing.ports import free_port

ACCESS_KEY = "cometmq"
SECRET_KEY = "seaweed-secret"
BUCKET = "lake"
TABLE_BUCKET = "tables"


@dataclass(frozen=True)
class S3Server:
    """A running S3 server with one bucket."""

    endpoint: str
    iceberg: str = ""
    """URL of its Iceberg REST catalog, which has the table bucket :data:`TABLE_BUCKET`."""

    @property
    def options(self) -> StorageOptions:
        """The options of its storage."""
        return StorageOptions(
            endpoint=self.endpoint, region="us-east-1", access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY
        )

    def client(self, service: str = "s3") -> Any:
        """A client of boto3, for what the product does not do."""
        import boto3  # a quarter of a second, which each process of the tests would spend on it
        from botocore.config import Config

        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}, read_timeout=5),
        )


@contextmanager
def seaweed(
    directory: Path, *, with_catalog: bool = False, more_keys: Sequence[tuple[str, str]] = ()
) -> Iterator[S3Server]:
    """Run SeaweedFS inside the block.

    :param more_keys: access and secret keys of other users.
    """
    identities = [
        {
            "name": access_key,
            "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        for access_key, secret_key in ((ACCESS_KEY, SECRET_KEY), *more_keys)
    ]
    (directory / "s3.json").write_text(json.dumps({"identities": identities}))
    ports = {
        name: free_port()
        for name in (
            "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc",
            "s3.port", "s3.port.grpc",
        )
    }  # fmt: skip
    iceberg = free_port() if with_catalog else 0
    command = [
        str(Path(sys.executable).with_name("weed")), "server", f"-dir={directory}", "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.config={directory / 's3.json'}", "-volume.max=0",
        "-master.volumeSizeLimitMB=64", "-master.telemetry=false", f"-s3.port.iceberg={iceberg}",
        "-s3.port.lance=0",
        "-s3.autoCreateBucket=false",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]  # fmt: skip
    listening = [ports["s3.port"], ports["filer.port"], *([iceberg] if iceberg else [])]
    with server(command, directory, listening):
        found = S3Server(f"http://127.0.0.1:{ports['s3.port']}", f"http://127.0.0.1:{iceberg}" if iceberg else "")
        wait_for(lambda: _has_bucket(found), "SeaweedFS creates a bucket")
        if iceberg:
            found.client("s3tables").create_table_bucket(name=TABLE_BUCKET)
        yield found


def _has_bucket(found: S3Server) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError

    client: Any = found.client()
    with suppress(BotoCoreError, ClientError):
        client.create_bucket(Bucket=BUCKET)
    with suppress(BotoCoreError, ClientError):
        client.put_object(Bucket=BUCKET, Key="_ready", Body=b"1")
        return True
    return False
