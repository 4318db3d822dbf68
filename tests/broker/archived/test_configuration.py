"""The keys of the archive that a broker reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.broker.config import load_broker_config, storage_options
from cometmq.options import ConfigError


def load(path: Path, *lines: str) -> object:
    (path / "broker.conf").write_text("\n".join(lines))
    return load_broker_config(path / "broker.conf")[0]


def test_an_archive_is_named_by_a_path_or_a_url(tmp_path: Path) -> None:
    for url in ("/lake/orders", "file:///lake/orders", "s3://bucket/lake", "hdfs://nn:8020/lake"):
        assert f"archive_read='{url}'" in repr(load(tmp_path, f"archive.read={url}"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("archive.read=ftp://host/lake", "unknown scheme ftp"),
        ("archive.read=s3://", "bucket"),
        ("archive.read.storage=endpont=http://minio:9000", "endpont"),
    ],
)
def test_what_cannot_be_read_is_refused_at_the_start(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load(tmp_path, line)


def test_options_of_the_storage_are_no_part_of_a_shown_configuration(tmp_path: Path) -> None:
    config = load(tmp_path, "archive.read.storage=secretAccessKey=hidden, region=eu")
    assert "hidden" not in repr(config)
    assert storage_options("secretAccessKey=hidden, region=eu") == {"secretAccessKey": "hidden", "region": "eu"}
