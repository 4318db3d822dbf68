"""Storage options: endpoint, region and credentials.

Options that are not set are taken from the environment of each process, in the same way as by the cloud's own tools:
from variables (``AWS_ACCESS_KEY_ID``, ``AZURE_STORAGE_ACCOUNT_KEY``, ``GOOGLE_APPLICATION_CREDENTIALS`` …), profiles,
workload and instance identity. So a command needs no secrets, and tasks on other machines use their machine's identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from cometmq.options.declared import nearest, option, options_of
from cometmq.options.forms import PATH, OptionError, one_of, text

_HTTP: Final = text(r"https?://[^\s/]+(/.*)?", "a URL such as https://minio.example.com:9000")


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """The options of one storage; an empty string means the value from the environment.

    Secret fields never appear in a ``repr`` or an error.
    """

    endpoint: str = option(
        "", "URL of the server, for all but the cloud's own (MinIO, Ceph, R2, OSS, emulators)", form=_HTTP
    )
    region: str = option("", "region of an S3 bucket; `auto` for Cloudflare R2")
    profile: str = option("", "profile in `~/.aws`; needs the extra `aws`")
    access_key_id: str = option("", "access key of S3")
    secret_access_key: str = option("", "secret key of S3", secret=True)
    session_token: str = option("", "session token of S3", secret=True)
    anonymous: bool = option(False, "send unsigned requests, for public buckets")
    virtual_host: bool = option(False, "put the bucket into the host name, as Alibaba OSS demands")
    encryption: str = option("", "server-side encryption of S3: `AES256`, `aws:kms` or `aws:kms:dsse`")
    kms_key: str = option("", "key of `aws:kms`")
    sign_content: str = option(
        "",
        "sign the content of requests to S3, not only their headers: `always` or `never`; by default over http, since "
        "TLS protects the content itself",
        form=one_of("", "always", "never"),
    )
    forbid_overwrite_header: str = option(
        "",
        "header that forbids to replace an object, where `If-None-Match` does not work: "
        "`x-oss-forbid-overwrite` (Alibaba OSS), `x-cos-forbid-overwrite` (Tencent COS)",
    )
    ca_file: str = option(
        "",
        "PEM file of the authority of the server's certificate; by default `AWS_CA_BUNDLE` or `SSL_CERT_FILE` names it",
        form=PATH,
    )
    account_access_key: str = option("", "access key of an Azure storage account", secret=True)
    sas_token: str = option("", "shared access signature of Azure", secret=True)
    tenant_id: str = option("", "tenant of an Azure service principal")
    client_id: str = option("", "client of an Azure service principal")
    client_secret: str = option("", "secret of an Azure service principal", secret=True)
    service_account_file: str = option("", "key file of a Google service account", form=PATH)

    @classmethod
    def from_texts(cls, values: Mapping[str, str]) -> StorageOptions:
        """Parse options given by their names, for example ``endpoint`` or ``virtualHost``.

        :raises OptionError: a name is unknown or a value is invalid.
        """
        known = options_of(cls)
        parsed: dict[str, Any] = {}
        for name, value in values.items():
            declared = known.get(name)
            if declared is None:
                similar = nearest(name, known)
                raise OptionError(
                    f"unknown storage option {name}",
                    next_step=f"did you mean {similar}?" if similar else f"known are {', '.join(known)}",
                )
            try:
                parsed[declared.name] = declared.form.parse(value)
            except OptionError as error:
                raise OptionError(error.reason, option=name, next_step=error.next_step) from None
        return cls(**parsed)

    def over(self, other: StorageOptions) -> StorageOptions:
        """Return these options; options that are not set are taken from ``other``."""
        return StorageOptions(
            **{field.name: getattr(self, field.name) or getattr(other, field.name) for field in fields(self)}
        )

    def texts(self) -> dict[str, str]:
        """Return the options that are set, by their names, as :meth:`from_texts` parses them."""
        return {
            name: declared.form.show(value)
            for name, declared in options_of(type(self)).items()
            if (value := getattr(self, declared.name))
        }

    @property
    def secrets(self) -> list[str]:
        """The secret values, which must not appear in a message."""
        return [
            value
            for declared in options_of(type(self)).values()
            if declared.secret and (value := getattr(self, declared.name))
        ]
