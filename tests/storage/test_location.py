"""Paths and URLs of storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.paths import PathError
from cometmq.storage import Location


@pytest.mark.parametrize(
    ("url", "kind", "container", "path"),
    [
        ("s3://bucket/lake/orders", "s3", "bucket", "lake/orders"),
        ("s3a://bucket", "s3", "bucket", ""),
        ("S3://bucket/lake/", "s3", "bucket", "lake"),
        ("s3:/bucket/lake", "s3", "bucket", "lake"),  # as pathlib writes it
        ("gs://bucket/lake", "gcs", "bucket", "lake"),
        ("hdfs://node:8020/data", "hdfs", "node:8020", "data"),
        ("hdfs://nameservice1/", "hdfs", "nameservice1", ""),
    ],
)
def test_a_url_names_its_storage(url: str, kind: str, container: str, path: str) -> None:
    location = Location.parse(url)
    assert (location.kind, location.container, location.path) == (kind, container, path)
    assert Location.parse(str(location)) == location


def test_azure_has_a_container_and_an_account() -> None:
    location = Location.parse("abfss://lake@shop.dfs.core.windows.net/orders")
    assert (location.container, location.account, location.path) == ("lake", "shop.dfs.core.windows.net", "orders")
    assert str(location) == "abfss://lake@shop.dfs.core.windows.net/orders"


@pytest.mark.parametrize("text", ["lake", "/data/lake", "file:///data/lake", "./s3/lake"])
def test_paths_are_local(text: str) -> None:
    location = Location.parse(text)
    assert location.kind == "local"
    assert Path(location.path).is_absolute()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("oss://bucket/lake", "Alibaba OSS is reached by its S3 interface"),
        ("ftp://host/lake", "unknown scheme ftp .*s3://bucket/path"),
        ("wasbs://c@a.blob.core.windows.net/x", "use abfss://"),
        ("s3://", "invalid bucket name ''"),
        ("s3://bu cket/x", "invalid bucket name"),
        ("s3://bucket/a//b", "must not contain empty parts"),
        ("s3://bucket/../other", "must not contain empty parts"),
        ("s3://bucket/x?versionId=1", "must not contain"),
        ("abfss://account.dfs.core.windows.net/x", "a container is missing"),
        ("hdfs:///data", "a name node is missing"),
        ("file://host/data", "not a file on this machine"),
    ],
)
def test_a_url_that_names_no_storage_is_an_error_with_the_next_step(url: str, reason: str) -> None:
    with pytest.raises(PathError, match=reason):
        Location.parse(url)


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(PathError) as raised:
        Location.parse("s3://KEY:TOPSECRET@bucket/lake")
    assert "credentials in a URL are not accepted" in str(raised.value)
    assert "TOPSECRET" not in str(raised.value)
