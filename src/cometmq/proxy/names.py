"""Names of topics and groups in requests (``NamespaceUtil``, ``GrpcValidator``)."""

from __future__ import annotations

from typing import Final

from cometmq.message.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_GROUPS,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    check_group,
    check_topic,
)
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code

_SEPARATOR: Final = "%"
_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX)


def full_name(resource: v2.Resource) -> str:
    """The name with its namespace before it: ``namespace%name``."""
    name, namespace = resource.name, resource.resource_namespace
    if not namespace or not name:
        return name
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
    plain = name[len(prefix) :]
    own = namespace + _SEPARATOR
    return name if plain.startswith(own) else prefix + own + plain


def resource_of(name: str) -> v2.Resource:
    """The resource of a name, with the namespace in a field of its own."""
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
    namespace, separator, plain = name[len(prefix) :].partition(_SEPARATOR)
    if not separator:
        return v2.Resource(name=name)
    return v2.Resource(name=prefix + plain, resource_namespace=namespace)


def topic_of(resource: v2.Resource) -> str:
    """The topic of a request.

    :raises ProxyError: it has no valid name, or is one of the system's.
    """
    name = full_name(resource)
    wrong = check_topic(name)
    if wrong is not None:
        # Apache's proxy says which topic it was, except for a blank one.
        words = wrong.replace("topic contains", f"topic[{name}] contains").removesuffix(".")
        raise ProxyError(Code.ILLEGAL_TOPIC, words)
    if name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX):
        raise ProxyError(Code.ILLEGAL_TOPIC, "cannot access system topic")
    return name


def group_of(resource: v2.Resource) -> str:
    """The consumer group of a request.

    :raises ProxyError: it has no valid name, or is one of the system's.
    """
    name = full_name(resource)
    wrong = check_group(name)
    if wrong is not None:
        raise ProxyError(Code.ILLEGAL_CONSUMER_GROUP, wrong)
    if name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX):
        raise ProxyError(Code.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group")
    return name
