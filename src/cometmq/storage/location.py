"""Locations: the paths and URLs that users write to name a storage."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Final, Literal
from urllib.parse import urlsplit

from cometmq.paths import PathError, local_text, scheme_of

Kind = Literal["local", "s3", "gcs", "azure", "hdfs", "iceberg"]
SCHEMES: Final[dict[str, Kind]] = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "abfs": "azure",
    "abfss": "azure",
    "hdfs": "hdfs",
    "iceberg": "iceberg",
}
FORMS: Final = (
    "a path, file:///path, s3://bucket/path, s3a://bucket/path, gs://bucket/path, "
    "abfss://container@account.dfs.core.windows.net/path or hdfs://host:port/path"
)
_HINTS: Final = {
    "oss": "Alibaba OSS is reached by its S3 interface: s3://bucket/path with the endpoint "
    "https://s3.oss-REGION.aliyuncs.com",
    "wasb": "use abfss://container@account.dfs.core.windows.net/path",
    "wasbs": "use abfss://container@account.dfs.core.windows.net/path",
    "s3n": "use s3a://bucket/path",
    "gcs": "use gs://bucket/path",
    "webhdfs": "use hdfs://host:port/path",
}
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed path or URL."""

    kind: Kind
    scheme: str
    """The scheme that the user wrote, in lower case; empty for a local path."""
    container: str
    """The bucket, the container, the host and port of HDFS, or an Iceberg catalog; empty for a local path."""
    path: str
    """The prefix in the container, with no slashes at its ends; for a local path, the complete path; in a catalog, the
    namespace and the name of a table."""
    account: str = ""
    """The Azure storage account with its domain, for example ``lake.dfs.core.windows.net``."""

    def __str__(self) -> str:
        """Return the location in the form that users write."""
        if self.kind == "local":
            return self.path
        authority = f"{self.container}@{self.account}" if self.account else self.container
        return f"{self.scheme}://{authority}/{self.path}".rstrip("/")

    def at(self, path: str) -> Location:
        """Return the location of another path in the same container."""
        return replace(self, path=path)

    def below(self, directory: str) -> Location:
        """Return the location of a directory in this one."""
        return self.at(f"{self.path}/{directory}".lstrip("/"))

    @classmethod
    def parse(cls, text: str | os.PathLike[str]) -> Location:
        """Parse a path or a URL.

        :raises PathError: the scheme is unknown, or the URL is incomplete or contains credentials.
        """
        url = os.fspath(text)
        scheme = scheme_of(url)
        if scheme is None or scheme == "file":
            return cls("local", "", "", os.path.abspath(local_text(url)))  # noqa: PTH100  # keeps a text
        kind = SCHEMES.get(scheme)
        if kind is None:
            raise PathError(f"{url}: unknown scheme {scheme}", next_step=_HINTS.get(scheme, f"use {FORMS}"))
        return _parse_url(kind, scheme, url)


def _parse_url(kind: Kind, scheme: str, url: str) -> Location:
    match = re.fullmatch(r"[^:]+:/{1,2}([^/]*)/*(.*)", url, re.DOTALL)  # pathlib keeps one slash of two
    assert match is not None
    authority, path = match[1], match[2]
    if "?" in path or "#" in path:
        raise PathError(f"{_redact(url)}: the URL must not contain ? or #", next_step=f"use {FORMS}")
    account = ""
    if kind == "azure":
        authority, _, account = authority.rpartition("@")
        if not authority:
            raise PathError(
                f"{url}: a container is missing", next_step="use abfss://container@account.dfs.core.windows.net/path"
            )
    elif "@" in authority:
        raise PathError(
            f"{_redact(url)}: credentials in a URL are not accepted, since URLs are logged",
            next_step="set them in the environment or in a profile",
        )
    if kind == "hdfs":
        if urlsplit(f"//{authority}").hostname is None:
            raise PathError(f"{url}: a name node is missing", next_step="use hdfs://host:port/path")
    elif not _BUCKET.fullmatch(authority):
        raise PathError(f"{url}: invalid bucket name {authority!r}", next_step=f"use {FORMS}")
    parts = path.strip("/").split("/") if path.strip("/") else []
    if any(part in ("", ".", "..") for part in parts):
        raise PathError(f"{url}: the path must not contain empty parts, '.' or '..'", next_step=f"use {FORMS}")
    return Location(kind, scheme, authority, "/".join(parts), account)


def _redact(url: str) -> str:
    """Return a URL without its credentials and query."""
    return re.sub(r"//[^/@]*@", "//***@", url).partition("?")[0]
