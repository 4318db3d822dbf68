"""The names of other tools' queues in names of topics: any characters, reversible, without collisions.

Celery, Django, Taskiq and Dramatiq name queues as they like. The topic of a queue has the queue's name, in which
letters, digits, ``_`` and ``-`` stay as they are; every other byte of its UTF-8 is ``%`` and two hexadecimal digits, as
in a URL. People see and type the queue's own spelling.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from cometmq.message.names import ALLOWED_NAME, check_topic


def quoted(name: str, errors: str = "strict") -> str:
    """Return a name with only letters, digits, ``_``, ``-`` and ``%XX``.

    :param errors: what becomes of half a character, as in :meth:`str.encode`.
    :raises UnicodeEncodeError: the name contains half of a character, and ``errors`` is ``strict``.
    """
    return quote(name, safe="", errors=errors).replace(".", "%2E").replace("~", "%7E")


def topic_spelled(text: str) -> str:
    """Return the topic that people mean: a text that no topic's name can be is the name of a queue.

    A text with half of a character can be neither, and is returned as it is.
    """
    if not text or ALLOWED_NAME.fullmatch(text):
        return text
    try:
        return quoted(text)
    except UnicodeEncodeError:
        return text


def topic_meant(text: str) -> str | None:
    """Return the topic of a queue that has a text as its name, for an error where only a topic's name is allowed;
    ``None`` if there is none.
    """
    topic = topic_spelled(text)
    return topic if check_topic(topic) is None else None


def own_spelling(topic: str) -> str:
    """Return the queue's own spelling of a topic's name, or the name itself if it is not that of a queue.

    :func:`topic_spelled` of the result is the topic, so no two topics look alike.
    """
    if "%" not in topic:
        return topic
    try:
        name = unquote(topic, errors="strict")
    except UnicodeDecodeError:
        return topic
    return name if topic_spelled(name) == topic else topic
