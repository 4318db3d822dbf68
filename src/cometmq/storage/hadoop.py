"""Reads storage options from Hadoop's configuration, where Spark users have already set endpoints and credentials.

The keys are those of Hadoop 3's modules ``hadoop-aws`` and ``hadoop-azure``, and of Google's connector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cometmq.storage.location import Location
from cometmq.storage.options import StorageOptions

Lookup = Callable[[str], str | None]
"""Returns the value of a Hadoop key, or None if it is not set."""
_S3: Final = {
    "access.key": "access_key_id",
    "secret.key": "secret_access_key",
    "session.token": "session_token",
    "endpoint.region": "region",
    "encryption.algorithm": "encryption",
    "encryption.key": "kms_key",
}
_ENCRYPTION: Final = {"SSE-S3": "AES256", "SSE-KMS": "aws:kms", "DSSE-KMS": "aws:kms:dsse"}
_ANONYMOUS: Final = "AnonymousAWSCredentialsProvider"
_PROFILE: Final = "ProfileCredentialsProvider"


def options_from_hadoop(location: Location, lookup: Lookup) -> StorageOptions:
    """Return the options for a location from a Hadoop configuration; a bucket's own key takes precedence over the
    general key."""
    if location.kind == "s3":
        return _s3(location.container, lookup)
    if location.kind == "azure":
        return _azure(location.account, lookup)
    if location.kind == "gcs":
        return StorageOptions(
            service_account_file=lookup("fs.gs.auth.service.account.json.keyfile")
            or lookup("google.cloud.auth.service.account.json.keyfile")
            or "",
            endpoint=lookup("fs.gs.storage.root.url") or "",
        )
    return StorageOptions()


def _s3(bucket: str, lookup: Lookup) -> StorageOptions:
    def value(name: str) -> str:
        return lookup(f"fs.s3a.bucket.{bucket}.{name}") or lookup(f"fs.s3a.{name}") or ""

    texts = {field: value(name) for name, field in _S3.items()}
    texts["encryption"] = _ENCRYPTION.get(texts["encryption"], texts["encryption"])
    endpoint = value("endpoint")
    if endpoint and "://" not in endpoint:
        endpoint = f"{'http' if value('connection.ssl.enabled') == 'false' else 'https'}://{endpoint}"
    providers = value("aws.credentials.provider")
    return StorageOptions(
        endpoint=endpoint,
        virtual_host=bool(endpoint) and value("path.style.access") == "false",
        anonymous=_ANONYMOUS in providers,
        profile="default" if _PROFILE in providers else "",
        **texts,
    )


def _azure(account: str, lookup: Lookup) -> StorageOptions:
    def value(name: str) -> str:
        return lookup(f"{name}.{account}") or lookup(name) or ""

    endpoint = value("fs.azure.account.oauth2.client.endpoint")  # https://login.microsoftonline.com/TENANT/oauth2/token
    parts = endpoint.split("/")
    return StorageOptions(
        account_access_key=value("fs.azure.account.key"),
        sas_token=value("fs.azure.sas.fixed.token"),
        client_id=value("fs.azure.account.oauth2.client.id"),
        client_secret=value("fs.azure.account.oauth2.client.secret"),
        tenant_id=parts[3] if len(parts) > 3 else "",
    )
