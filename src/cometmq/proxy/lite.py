"""Lite topics: their names, the consumer groups that read them, and clients' subscriptions at the brokers."""

from __future__ import annotations

import asyncio
import re
from typing import Final

from cometmq.message.lite_names import MAX_LITE_TOPIC_BYTES
from cometmq.proxy.backend.backend import Backend, GroupInfo, Link
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.protocol.v2 import ClientType, Code
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.lite.bodies import LiteSubscriptionAction, LiteSubscriptionDTO, encode_changes
from cometmq.remoting.lite.headers import LiteSubscriptionCtlRequestHeader

LITE_CLIENTS: Final = (ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER)
LITE_MODEL: Final = "LITE_SELECTIVE"
"""The message model of consumers of lite topics in heartbeats."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_USUAL_NAME: Final = re.compile(f"[A-Za-z0-9_-]{{1,{MAX_LITE_TOPIC_BYTES}}}")


def check_name(name: str) -> None:
    """Check the name of a lite topic.

    :raises ProxyError: the name is blank, too long, or has characters that Apache's proxy does not allow.
    """
    if _USUAL_NAME.fullmatch(name):  # a client may send 100,000 of them at once
        return
    wrong = None
    if not name.strip():
        wrong = "lite topic cannot be the char sequence of whitespace"
    elif len(name.encode()) > MAX_LITE_TOPIC_BYTES:
        wrong = f"lite topic exceed the max size {MAX_LITE_TOPIC_BYTES}"
    elif not _NAME.fullmatch(name):
        wrong = "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)"
    if wrong is not None:
        raise ProxyError(Code.ILLEGAL_LITE_TOPIC, wrong)


def check_group(name: str, info: GroupInfo, topics: list[str], *, is_lite: bool) -> None:
    """Check that a group that reads lite topics is used by their consumers only, and with its own topic.

    :param topics: the topics to which the client subscribes.
    :raises ProxyError: the group has another kind of consumers, or is bound to another topic.
    """
    if is_lite != bool(info.bind_topic):
        words = "lite group must use LITE mode" if info.bind_topic else "regular group cannot use LITE mode"
        raise ProxyError(Code.ILLEGAL_CONSUMER_GROUP, f"{words}: {name}")
    if is_lite and topics[:1] != [info.bind_topic] and topics:
        raise ProxyError(
            Code.ILLEGAL_TOPIC,
            f"lite group {name} is expected to bind topic {info.bind_topic}, but actual is {topics[0]}",
        )


async def synchronize(backend: Backend, link: Link, change: LiteSubscriptionDTO) -> None:
    """Send a change of a client's subscription to all brokers that have queues of the topic.

    :raises ProxyError: the topic does not exist, or a broker refuses or does not answer.
    """
    info = await backend.topic(change.topic)
    brokers = [queues.broker for queues in info.queues if queues.readable]
    if not brokers:
        raise ProxyError(Code.FORBIDDEN, "no readable queue")
    body = encode_changes([change])
    header = LiteSubscriptionCtlRequestHeader()
    asked = [link.ask(broker, RequestCode.LITE_SUBSCRIPTION_CTL, header, body) for broker in brokers]
    for outcome in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        outcome.checked()


async def unsubscribe(backend: Backend, link: Link, client_id: str, group: str, topic: str) -> None:
    """End the subscription of a client that leaves.

    :raises ProxyError: a broker does not answer; it forgets the client after some minutes.
    """
    action = LiteSubscriptionAction.COMPLETE_REMOVE
    change = LiteSubscriptionDTO(action=action, client_id=client_id, group=group, topic=topic)
    await synchronize(backend, link, change)
