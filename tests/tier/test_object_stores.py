"""An archive in an S3 store is read by ranges."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from tests.storage.servers.seaweed import BUCKET, S3Server, seaweed
from tests.tier.archives import AT_MS, make_records, open_reader, read_all, write_archive

from cometmq.storage import Storage, open_storage


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweed(tmp_path_factory.mktemp("seaweed")) as running:
        yield running


def uploaded(root: Path, storage: Storage) -> Storage:
    """Copy an archive to another storage."""
    for path in root.rglob("*"):
        if path.is_file() and path.stat().st_size:
            storage.put(path.relative_to(root).as_posix(), path.read_bytes())
    return storage


def test_records_are_read_from_s3_byte_for_byte(server: S3Server, tmp_path: Path) -> None:
    parts = [make_records(2_000), make_records(2_000, 2_000, first=2_000, at_ms=AT_MS + 3_600_000)]
    write_archive(tmp_path, parts)
    storage = uploaded(tmp_path, open_storage(f"s3://{BUCKET}/orders", server.options))
    assert b"".join(read_all(open_reader(storage))) == b"".join(chain(*parts))
