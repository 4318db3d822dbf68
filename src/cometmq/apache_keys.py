"""All keys in Apache RocketMQ's configurations from 4.9.0 to 5.5.0, with their types (``apache_keys.tsv``).

Keys that are CometMQ options take effect. All other keys are accepted and stored, since Apache's tools and files set
them, but have no effect. The list is made from the fields and setters of Apache's classes. Each line has the class, the
key, the Java type, and the first and last release that has the key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

from cometmq.limits import MAX_KEPT_VALUE_CHARS
from cometmq.options import Option
from cometmq.options.forms import FLAG, Form, number, text, whole

BROKER: Final = ("BrokerConfig", "MessageStoreConfig", "NettyServerConfig", "NettyClientConfig", "AuthConfig")
"""The classes that ``broker.conf`` configures."""
NAMESERVER: Final = ("NamesrvConfig", "NettyServerConfig", "NettyClientConfig", "ControllerConfig")
"""The classes that ``namesrv.conf`` configures."""
_NEWER_AT_NAMESERVERS: Final = ("NettyClientConfig", "ControllerConfig")
"""Classes that only newer nameservers have; the 4.9.7 nameserver does not show their keys."""

_FIXED_PARTS: Final = ("Path", "Home", "PlugIn", "Provider", "configBlackList")
"""Keys whose names contain these parts have files or classes as values; requests must not change such keys."""
_OF_PROCESSORS: Final = {
    "clientCallbackExecutorThreads": (0, 1, 2**31),
    "endTransactionThreadPoolNums": (8, 2, 2**31),
    "heartbeatThreadPoolNums": (0, 1, 32),
    "processReplyMessageThreadPoolNums": (16, 2, 2**31),
    "pullMessageThreadPoolNums": (16, 2, 2**31),
    "putMessageFutureThreadPoolNums": (0, 1, 4),
    "queryMessageThreadPoolNums": (8, 1, 2**31),
    "sendMessageThreadPoolNums": (0, 1, 4),
}
"""Keys whose value in 4.9.7 depends on the number of processors, each with a base, an increment per processor, and a
maximum."""
_HOME: Final = "rocketmqHome"
_SECRET: Final = frozenset(
    {"initAuthenticationUser", "innerClientAuthenticationCredentials", "metricsGrpcExporterHeader", "socksProxyConfig"}
)
_FORMS: Final[Mapping[str, Form[Any]]] = {
    "boolean": FLAG,
    "int": whole(-(2**31), 2**31 - 1),
    "long": whole(-(2**63), 2**63 - 1),
    "float": number(-3.4e38, 3.4e38),
    "double": number(-1.7e308, 1.7e308),
    "String": text(
        rf"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{{0,{MAX_KEPT_VALUE_CHARS}}}",
        f"at most {MAX_KEPT_VALUE_CHARS} characters, none of them a control character",
    ),
}


@cache
def apache_keys(classes: tuple[str, ...]) -> Mapping[str, Option]:
    """Return the keys of some configuration classes; keys that name files or classes cannot change at run time."""
    lines = resources.files("cometmq").joinpath("apache_keys.tsv").read_text(encoding="ascii")
    found: dict[str, Option] = {}
    for line in lines.splitlines():
        class_name, key, kind, first, last, *default = line.split("\t")
        if class_name in classes:
            is_newer = classes == NAMESERVER and class_name in _NEWER_AT_NAMESERVERS
            doc = f"A key of Apache's {class_name}, {first} to {last}."
            found.setdefault(key, _option(key, kind, None if is_newer else _default(key, default), doc))
    return found


def _default(key: str, listed: list[str]) -> str | None:
    """Return the text that Apache 4.9.7 shows for an unset key, or None if it shows nothing."""
    if key == _HOME:
        return os.environ.get("ROCKETMQ_HOME", "")
    if key in _OF_PROCESSORS:
        least, each, most = _OF_PROCESSORS[key]
        return str(min(least + each * (os.cpu_count() or 1), most))
    return listed[0] if listed else None


def _option(key: str, kind: str, default: str | None, doc: str) -> Option:
    runtime = not any(part in key for part in _FIXED_PARTS)
    return Option(_FORMS[kind], doc, key, key, default, runtime=runtime, secret=key in _SECRET)
