"""The names of topics, groups and tags for Kombu's queues, exchanges and routing keys.

A queue's topic has the queue's name, in which each byte that topics cannot have is written as ``%XX``. So different
queues have different topics, and :func:`queue_of` finds the queue of a topic. Only a name that would be too long is
shortened: its topic ends with a hash, and the name itself is in the nameserver's KV configuration.

The topic of an exchange contains ``|``, which no topic of a queue has outside of a shortened name.
"""

from __future__ import annotations

import hashlib
from typing import Final
from urllib.parse import unquote

from cometmq.message import queue_names
from cometmq.message.names import is_system_topic

MAX_CHARS: Final = 90
"""Maximum length of a topic: its name and the group's are both in the name of the retry topic."""
GROUP: Final = "celery"
_HASH_CHARS: Final = 24
_EXCHANGE: Final = "|exchange"
_SHORT: Final = "|long|"
REPLIES: Final = "|replies"
"""The topic for queues that exist only as long as a process, and that messages are sent to by name."""


def quoted(name: str) -> str:
    """Return a name with only letters, digits, ``-``, ``_`` and ``%XX``; it may contain half a character."""
    return queue_names.quoted(name, errors="surrogatepass")


def topic_of_queue(prefix: str, queue: str) -> str:
    """Return the topic of a queue."""
    name = _topic(prefix, quoted(queue))
    return f"%{ord(name[0]):02X}{name[1:]}" if is_system_topic(name) else name


def topic_of_exchange(prefix: str, exchange: str) -> str:
    """Return the topic with the messages that are read by every queue of an exchange at its own position."""
    return _topic(prefix, quoted(exchange)) + _EXCHANGE


def group_of(prefix: str) -> str:
    """Return the group that consumes all queues."""
    return prefix + GROUP


def replies_topic(prefix: str) -> str:
    """Return the topic for messages to queues that exist only as long as a process."""
    return f"{prefix}{REPLIES}"


def is_shortened(topic: str) -> bool:
    """Return whether a topic's name does not contain the whole name of its queue."""
    return _SHORT in topic


def queue_of(prefix: str, topic: str) -> str | None:
    """Return the queue of a topic, or ``None`` if the topic belongs to no queue, or its name is shortened."""
    if not topic.startswith(prefix) or "|" in topic[len(prefix) :]:
        return None
    try:
        name = unquote(topic[len(prefix) :], errors="surrogatepass")
    except UnicodeDecodeError:
        return None
    return name if topic_of_queue(prefix, name) == topic else None


def tag_of(key: str) -> str:
    """Return the tag of the messages with a routing key, or for a queue."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]


def _topic(prefix: str, name: str) -> str:
    if len(prefix) + len(name) <= MAX_CHARS:
        return prefix + name
    end = _SHORT + hashlib.sha256(name.encode()).hexdigest()[:_HASH_CHARS]
    return prefix + name[: MAX_CHARS - len(prefix) - len(end)] + end
