"""Describes failures of object stores in sentences, with a next step for each error code.

The error texts of obstore contain URLs, which may include signatures, and complete server answers. The messages made
here contain only the error code and the server's own sentence, but no secrets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cometmq.storage.errors import ObjectNotFoundError, StorageError, StorageUnavailableError

_LONGEST_DETAIL: Final = 300
_SIGNATURES: Final = re.compile(r"((?:sig|signature|X-Amz-[A-Za-z-]+|Signature|AWSAccessKeyId)=)[^&\s\"'<>)]+")

_DECORATION: Final = re.compile(r"\x1b\[\d*m|↳")
"""Colours and arrows in the errors of deltalake."""


@dataclass(frozen=True, slots=True)
class _Failure:
    pattern: re.Pattern[str]
    sentence: str
    next_step: str
    kind: type[StorageError] = StorageError


def _failure(pattern: str, sentence: str, next_step: str, kind: type[StorageError] = StorageError) -> _Failure:
    return _Failure(re.compile(pattern, re.IGNORECASE), sentence, next_step, kind)


_FAILURES: Final = (
    _failure(
        r"NoSuchBucket|ContainerNotFound|specified (bucket|container) does not exist",
        "the bucket does not exist",
        "create it, or check its name and the endpoint",
    ),
    _failure(
        r"RequestTimeTooSkewed|AuthenticationFailed.*Date|request time too skewed|too large a difference",
        "the clock of this machine differs from that of the storage",
        "set the clock (timedatectl set-ntp true), then run the command again",
    ),
    _failure(
        r"InvalidAccessKeyId|access key .*does not exist",
        "the access key is unknown",
        "check AWS_ACCESS_KEY_ID, the profile or the configuration of Hadoop",
    ),
    _failure(
        r"SignatureDoesNotMatch|AuthenticationFailed|InvalidAuthenticationInfo",
        "the secret key does not match the access key",
        "check the secret key and the region",
    ),
    _failure(r"ExpiredToken|token .*expired", "the session token has expired", "log in again, or get a new token"),
    _failure(
        r"PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint|(wrong|configured) region",
        "the bucket is in another region",
        "set the region of the bucket (AWS_REGION or the option region)",
    ),
    _failure(
        r"QuotaExceeded|QuotaFull|StorageFull|XMinioStorageFull|insufficient (storage|space)|no space left",
        "the storage is full",
        "free some room or raise the quota, then run the command again",
    ),
    _failure(
        r"ObjectLock|WORM|retention period|BlobImmutable",
        "the object is locked",
        "wait until its retention period ends, or use a bucket without object lock",
    ),
    _failure(
        r"AccessDenied|Forbidden|\b403\b|AuthorizationPermissionMismatch|Access ?Denied|permission",
        "the storage denies access",
        "grant reading, writing, listing and deleting below the URL",
    ),
    _failure(
        r"NotImplemented|\b501\b",
        "the storage does not support conditional writes (If-None-Match)",
        "set the option forbidOverwriteHeader (Alibaba OSS: x-oss-forbid-overwrite), or use a table with a catalog",
    ),
    _failure(
        r"certificate|UnknownIssuer|self.signed",
        "the certificate of the server is not trusted",
        "name its authority's file with AWS_CA_BUNDLE or the option caFile",
    ),
    _failure(
        r"SlowDown|\b503\b|\b429\b|TooManyRequests|ServerBusy|Throttl",
        "the storage asks for fewer requests",
        "run the command again later; it goes on where it stopped",
        StorageUnavailableError,
    ),
    _failure(
        r"169\.254\.169\.254|metadata.google|credential|IMDS",
        "no credentials were found",
        "set them in the environment (AWS_ACCESS_KEY_ID, AZURE_STORAGE_ACCOUNT_KEY, GOOGLE_APPLICATION_CREDENTIALS) "
        "or name a profile",
    ),
    _failure(
        r"dns|resolve|lookup address|Name or service",
        "the host name of the endpoint is unknown",
        "check the endpoint",
        StorageUnavailableError,
    ),
    _failure(
        r"connect|connection|timed? ?out|tcp|broken pipe|reset by peer|\b50[0-9]\b|InternalError|sending|decoding",
        "the storage does not answer",
        "check the endpoint and whether the server runs, then run the command again",
        StorageUnavailableError,
    ),
)


def storage_failure(place: str, error: Exception, secrets: list[str]) -> StorageError:
    """Return the error for a failed request.

    :param place: the URL of the object or directory.
    :param secrets: values that must not appear in the message.
    """
    text = str(error)
    if isinstance(error, FileNotFoundError) and not _FAILURES[0].pattern.search(text):
        return ObjectNotFoundError(f"{place} does not exist")
    detail = _detail(text, secrets)
    for failure in _FAILURES:
        if failure.pattern.search(text):
            return failure.kind(f"{place}: {failure.sentence}: {detail}", next_step=failure.next_step)
    return StorageError(f"{place}: {type(error).__name__}: {detail}")


def _detail(text: str, secrets: list[str]) -> str:
    code = re.search(r"<Code>([^<]{1,100})</Code>", text)
    message = re.search(r"<Message>([^<]{1,500})</Message>", text)
    if code is not None:
        text = f"{code[1]}, {message[1]}" if message else code[1]
    else:
        text = _DECORATION.sub("", text).partition("Debug source")[0]
    for secret in secrets:
        text = text.replace(secret, "***")
    text = " ".join(_SIGNATURES.sub(r"\1***", text).split()).rstrip(".")
    return text if len(text) <= _LONGEST_DETAIL else f"{text[:_LONGEST_DETAIL]}…"
