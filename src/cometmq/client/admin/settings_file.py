"""A cluster's settings as a JSON document: topics, groups, policies and quotas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cometmq.auth.model import AuthError
from cometmq.auth.policies import EntryInfo
from cometmq.auth.quota.model import Limits, Subject
from cometmq.errors import CometMQError
from cometmq.message.names import check_group, check_topic
from cometmq.options import nearest

FORMAT: Final = "cometmq-settings"
VERSION: Final = 1
MAX_DOCUMENT_BYTES: Final = 64 << 20
MAX_ENTRIES: Final = 100_000
"""Maximum number of topics, groups, users with policies and quotas together."""
_UNKNOWN_FIELD: Final = re.compile(r"unknown field `(.*?)`(.*)", re.DOTALL)


class SettingsFileError(CometMQError):
    """The settings document is invalid; the error message contains the position."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An entry in the settings document."""


class TopicEntry(_Entry, frozen=True, kw_only=True):
    """A topic's settings."""

    name: str
    read_queues: int
    write_queues: int
    permission: str = "rw"
    order: bool = False
    attributes: dict[str, str] = {}
    """RocketMQ 5 attributes, for example ``message.type``."""
    brokers: list[str] | None = None
    """The brokers with these settings; an empty list means all masters."""


class GroupEntry(_Entry, frozen=True, kw_only=True):
    """A consumer group's settings."""

    name: str
    max_retries: int = 16
    retry_queues: int = 1
    consume: bool = True
    consume_broadcast: bool = True
    consume_from_min: bool = True
    consume_orderly: bool = False
    consume_timeout_minutes: int | None = None
    retry_policy: dict[str, Any] | None = None
    """The delays before retries (``groupRetryPolicy``), in the form used in RocketMQ 5's requests."""
    system_flag: int = 0
    attributes: dict[str, str] = {}
    brokers: list[str] | None = None


class PolicyEntry(_Entry, frozen=True, kw_only=True):
    """An entry in a user's policies."""

    user: str
    resource: str
    actions: list[str]
    decision: str
    source_ips: list[str] = []
    type: str = "Custom"

    def info(self) -> EntryInfo:
        """Return the policy entry in the form used in requests."""
        return EntryInfo(self.resource, list(self.actions), list(self.source_ips), self.decision)


class QuotaEntry(_Entry, frozen=True, kw_only=True):
    """A subject's quota."""

    subject: str
    limits: Limits


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster's settings. A part is ``None`` if the cluster does not support this kind of setting."""

    format: str = FORMAT
    version: int = VERSION
    topics: list[TopicEntry] = []
    groups: list[GroupEntry] = []
    policies: list[PolicyEntry] | None = None
    quotas: list[QuotaEntry] | None = None

    def encode(self) -> bytes:
        """Return the document as readable JSON that can be compared line by line."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def parse_document(text: bytes, source: str) -> Document:
    """Parse and check a settings document.

    :param source: the document's name in errors.
    :raises SettingsFileError: the document is invalid.
    """
    if len(text) > MAX_DOCUMENT_BYTES:
        raise SettingsFileError(f"{source} is larger than {MAX_DOCUMENT_BYTES >> 20} MiB")
    try:
        document = msgspec.json.decode(text, type=Document)
    except msgspec.MsgspecError as error:
        raise SettingsFileError(f"{source}: {_explain_error(str(error))}") from None
    except RecursionError:
        raise SettingsFileError(f"{source} is nested too deeply") from None
    if document.format != FORMAT:
        raise SettingsFileError(
            f"{source} is not a {FORMAT} document", next_step="create one with cometmq topic export"
        )
    if document.version != VERSION:
        raise SettingsFileError(
            f"{source} has version {document.version}, but this CometMQ supports only version {VERSION}",
            next_step="use the version of CometMQ that created the document, or a newer one",
        )
    _check(document, source)
    return document


def _check(document: Document, source: str) -> None:
    """Check names, numbers and duplicates.

    :raises SettingsFileError: an entry is not allowed.
    """
    parts = (document.topics, document.groups, document.policies or (), document.quotas or ())
    if sum(map(len, parts)) > MAX_ENTRIES:
        raise SettingsFileError(f"{source} has more than {MAX_ENTRIES:,} entries")
    seen: set[tuple[str, ...]] = set()

    def once(kind: str, name: str, brokers: list[str] | None) -> None:
        for broker in brokers or [""]:
            if (kind, name, broker) in seen or (kind, name, "") in seen:
                raise SettingsFileError(f"{source} contains {kind} {name} twice")
            seen.add((kind, name, broker))

    for topic in document.topics:
        wrong = check_topic(topic.name)
        if wrong is None and not (0 <= topic.read_queues <= 65_535 and 0 <= topic.write_queues <= 65_535):
            wrong = "the number of queues must be from 0 to 65,535"
        if wrong is None and topic.permission not in ("", "r", "w", "rw"):
            wrong = f"permission {topic.permission!r} must be rw, r, w or empty"
        if wrong is not None:
            raise SettingsFileError(f"{source}: topic {topic.name[:100]!r}: {wrong}")
        once("topic", topic.name, topic.brokers)
    for group in document.groups:
        wrong = check_group(group.name)
        if wrong is None and not (-1 <= group.max_retries <= 1000 and 0 <= group.retry_queues <= 64):
            wrong = "max_retries must be from -1 to 1,000, and retry_queues from 0 to 64"
        if wrong is not None:
            raise SettingsFileError(f"{source}: group {group.name[:100]!r}: {wrong}")
        once("group", group.name, group.brokers)
    for quota in document.quotas or ():
        try:
            Subject.parse(quota.subject)
            quota.limits.check()
        except AuthError as error:
            raise SettingsFileError(f"{source}: quota {quota.subject[:100]!r}: {error}") from None
        once("quota", quota.subject, None)
    for policy in document.policies or ():
        once("policy", f"{policy.user} {policy.type} {policy.resource}", None)


def _explain_error(text: str) -> str:
    """Return msgspec's error text; for an unknown field, suggest the most similar known name."""
    found = _UNKNOWN_FIELD.search(text)
    if found is None:
        return text
    near = nearest(found[1], _KNOWN)
    return f"there is no field {found[1]!r}{found[2]}" + (f"; did you mean {near}?" if near else "")


def _fields(kind: type[msgspec.Struct]) -> Mapping[str, str]:
    return {field.encode_name: field.name for field in msgspec.structs.fields(kind)}


_KNOWN: Final = {
    name: None for kind in (Document, TopicEntry, GroupEntry, PolicyEntry, QuotaEntry, Limits) for name in _fields(kind)
}
