"""The topics of other tools' queues: a queue's topic is ``<prefix>-<queue>``, and its group is ``<prefix>``."""

from __future__ import annotations

import re
from typing import Final

from cometmq.errors import CometMQError
from cometmq.limits import MAX_TOPIC_CHARS
from cometmq.message.names import is_system_group, is_system_topic, retry_topic
from cometmq.message.queue_names import quoted

MAX_PREFIX_CHARS: Final = 40
_PREFIX: Final = re.compile(r"[a-zA-Z0-9_-]+")


class QueueNameError(CometMQError, ValueError):
    """A queue's name, or the prefix of the topics, cannot be part of a topic's name."""


def topic_of(prefix: str, queue: str) -> str:
    """Return the topic of a queue; it is short enough for the name of the group's retry topic.

    :raises QueueNameError: the name is empty, is no Unicode text or is too long, or the prefix has other characters.
    """
    is_usual = _PREFIX.fullmatch(prefix) is not None and len(prefix) <= MAX_PREFIX_CHARS
    if not is_usual or is_system_topic(f"{prefix}-") or is_system_group(prefix):
        raise QueueNameError(
            f"the prefix {prefix[:100]!r} cannot begin the names of topics",
            next_step=f"use 1 to {MAX_PREFIX_CHARS} letters, digits, _ and -, and no name of RocketMQ's own",
        )
    try:
        topic = f"{prefix}-{quoted(queue)}"
    except UnicodeEncodeError:
        raise QueueNameError(f"the queue name {queue[:100]!r} is not valid Unicode text") from None
    most = MAX_TOPIC_CHARS - len(f"{retry_topic(prefix)}_")
    if not queue or len(topic) > most:
        raise QueueNameError(
            f"the queue name {queue[:100]!r} is {'empty' if not queue else 'too long'}: its topic {topic[:200]} has "
            f"{len(topic)} characters, and {most} are allowed",
            next_step="use a shorter name; a character other than letters, digits, _ and - takes 3 to 12",
        )
    return topic
