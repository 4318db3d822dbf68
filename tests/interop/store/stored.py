"""The messages of a store as a client sees them: enough of each one to know it again byte for byte."""

from __future__ import annotations

from collections.abc import Iterable

from tests.interop.clients import Client
from tests.interop.commands import Event

# All that a pull answer tells of a message; the client decodes it from the record as it is on disk.
FIELDS = (
    "topic",
    "queueId",
    "queueOffset",
    "commitLogOffset",
    "storeSize",
    "msgId",
    "offsetMsgId",
    "flag",
    "sysFlag",
    "bornTimestamp",
    "storeTimestamp",
    "bornHost",
    "storeHost",
    "bodyCrc",
    "reconsumeTimes",
    "preparedTransactionOffset",
    "bodySize",
    "bodySha256",
)
# Added by the client to what it received, from the state of the queue at that moment.
ADDED_PROPERTIES = ("MIN_OFFSET", "MAX_OFFSET")

Message = tuple[object, ...]


def contents(java: Client, namesrv: str, topics: Iterable[str]) -> dict[str, list[Message]]:
    """Every message of these topics, queue by queue."""
    return {topic: [fingerprint(event) for event in java.read_topic(namesrv, topic)] for topic in topics}


def fingerprint(event: Event) -> Message:
    """One message."""
    properties = {name: value for name, value in event["properties"].items() if name not in ADDED_PROPERTIES}
    return (*(event[field] for field in FIELDS), tuple(sorted(properties.items())))
