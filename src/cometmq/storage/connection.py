"""Connections to object stores: the settings for obstore, from the location, the options and the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.errors import missing_package, pip_install, reason_of, require
from cometmq.storage.errors import StorageError
from cometmq.storage.location import Location
from cometmq.storage.options import StorageOptions

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_RETRIES: Final[dict[str, Any]] = {
    "max_retries": 30,
    "retry_timeout": timedelta(minutes=3),
    "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=15), "base": 2},
}
"""Retries for a few minutes, since a storage may demand fewer requests for a minute or two; obstore's default is 1.5
s."""
_REQUEST_TIMEOUT: Final = timedelta(minutes=2)
_CONNECT_TIMEOUT: Final = timedelta(seconds=10)
_CA_VARIABLES: Final = ("AWS_CA_BUNDLE", "SSL_CERT_FILE")
_PROFILE_VARIABLES: Final = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")


def connect(location: Location, options: StorageOptions, headers: Mapping[str, str] | None = None) -> ObjectStore:
    """Return the obstore client for the prefix of a location.

    :param headers: headers to send with each request.
    :raises MissingPackageError: obstore, or boto3 for a profile, is not installed.
    :raises StorageError: a file that an option names cannot be read.
    """
    require(f"{location.scheme}://", "lake", "obstore")
    from obstore.store import AzureStore, GCSStore, S3Store

    common: dict[str, Any] = {
        "prefix": location.path or None,
        "client_options": _client_options(options, dict(headers or {})),
        "retry_config": _RETRIES,
    }
    if location.kind == "s3":
        return S3Store(location.container, **_s3(options), **common)
    if location.kind == "gcs":
        return GCSStore(location.container, **_gcs(options), **common)
    return AzureStore(container_name=location.container, **_azure(location, options), **common)


def object_store_texts(location: Location, options: StorageOptions) -> dict[str, str]:
    """Return the settings of a location as texts, as other programs with Rust's ``object_store`` read them, such as
    deltalake. Those of a directory and of HDFS are empty.

    Short-lived credentials of a profile are in them, so call this function again before they expire.

    :raises MissingPackageError: boto3, for a profile, is not installed.
    :raises StorageError: such a program reads the server's authority only from ``SSL_CERT_FILE``.
    """
    if location.kind not in ("s3", "gcs", "azure"):
        return {}
    used = os.environ.get("SSL_CERT_FILE", "")
    ca_file = options.ca_file or used or _ca_file(options)
    if ca_file != used and not _allows_http(options):
        raise StorageError(
            f"{location}: the certificate file {ca_file} is named by an option or by AWS_CA_BUNDLE, but the table's "
            "library reads only SSL_CERT_FILE",
            next_step=f"export SSL_CERT_FILE={ca_file}",
        )
    found = {"s3": _s3, "gcs": _gcs}[location.kind](options) if location.kind != "azure" else _azure(location, options)
    provider = found.pop("credential_provider", None)
    if provider is not None:
        issued = provider()
        found |= _set(
            access_key_id=issued["access_key_id"],
            secret_access_key=issued["secret_access_key"],
            session_token=issued.get("token"),
        )
    backoff: Any = _RETRIES["backoff"]
    found |= {
        "allow_http": _allows_http(options),
        "timeout": _seconds(_REQUEST_TIMEOUT),
        "connect_timeout": _seconds(_CONNECT_TIMEOUT),
        "max_retries": _RETRIES["max_retries"],
        "retry_timeout": _seconds(_RETRIES["retry_timeout"]),
        "backoff_config.init_backoff": _seconds(backoff["init_backoff"]),
        "backoff_config.max_backoff": _seconds(backoff["max_backoff"]),
        "backoff_config.base": backoff["base"],
    }
    return {name: "true" if value is True else str(value) for name, value in found.items() if value is not False}


def _seconds(duration: Any) -> str:
    return f"{round(duration.total_seconds() * 1000)}ms"


def _client_options(options: StorageOptions, headers: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "timeout": _REQUEST_TIMEOUT,
        "connect_timeout": _CONNECT_TIMEOUT,
        "allow_http": _allows_http(options),
    }
    if headers:
        found["default_headers"] = headers
    ca_file = _ca_file(options)
    if ca_file:
        try:
            found["root_certificate"] = Path(ca_file).read_bytes()
        except OSError as error:
            raise StorageError(f"certificate file {ca_file}: {reason_of(error)}") from error
    return found


def _allows_http(options: StorageOptions) -> bool:
    return options.endpoint.startswith("http://") or os.environ.get("AWS_ALLOW_HTTP") == "true"


def _ca_file(options: StorageOptions) -> str:
    return options.ca_file or next((os.environ[name] for name in _CA_VARIABLES if os.environ.get(name)), "")


def _set(**values: Any) -> dict[str, Any]:
    """Return only the values that are set."""
    return {name: value for name, value in values.items() if value}


def _s3(options: StorageOptions) -> dict[str, Any]:
    found = _set(
        endpoint=options.endpoint,
        region=options.region,
        access_key_id=options.access_key_id,
        secret_access_key=options.secret_access_key,
        session_token=options.session_token,
        skip_signature=options.anonymous,
        virtual_hosted_style_request=options.virtual_host,
        server_side_encryption=options.encryption,
        sse_kms_key_id=options.kms_key,
        conditional_put="etag",  # the environment could turn it off
    )
    if options.sign_content or not _allows_http(options):
        found["unsigned_payload"] = options.sign_content != "always"  # SHA-256 is most of what an upload costs
    if (
        not (options.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"))
        and options.endpoint
    ):
        found["region"] = "us-east-1"  # servers other than Amazon's accept it
    profile = options.profile or next((os.environ[name] for name in _PROFILE_VARIABLES if os.environ.get(name)), "")
    if profile and not (options.access_key_id or options.anonymous or _has_environment_key(options)):
        found["credential_provider"] = _profile_credentials(profile)
    return found


def _has_environment_key(options: StorageOptions) -> bool:
    return not options.profile and "AWS_ACCESS_KEY_ID" in os.environ


def _profile_credentials(profile: str) -> Any:
    """Return the credentials of a profile in ``~/.aws``, which obstore itself does not read."""
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ModuleNotFoundError:
        raise missing_package(f"the profile {profile} in ~/.aws", "boto3", pip_install("aws")) from None
    from botocore.exceptions import BotoCoreError

    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=profile))
    except (BotoCoreError, ValueError) as error:
        raise StorageError(
            f"profile {profile}: {error}", next_step="check ~/.aws/config and ~/.aws/credentials"
        ) from error


def _gcs(options: StorageOptions) -> dict[str, Any]:
    return _set(
        service_account=options.service_account_file, skip_signature=options.anonymous, base_url=options.endpoint
    )


def _azure(location: Location, options: StorageOptions) -> dict[str, Any]:
    return _set(
        account_name=location.account.partition(".")[0],
        account_key=options.account_access_key,
        sas_key=options.sas_token,
        tenant_id=options.tenant_id,
        client_id=options.client_id,
        client_secret=options.client_secret,
        endpoint=options.endpoint,
        skip_signature=options.anonymous,
    )
