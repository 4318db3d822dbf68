"""Answers why a group has not consumed a message: asks the servers, and runs the checks in the order of its way."""

from __future__ import annotations

from cometmq.client.admin import Admin
from cometmq.client.admin.decisions import Decision, decision_of, plain_decision
from cometmq.client.diagnosis import consumption, stored
from cometmq.client.diagnosis.checks import Check, Explanation, Question, Unavailable, Verdict, tried
from cometmq.client.diagnosis.group import GroupFacts, facts_of
from cometmq.client.diagnosis.place import Extent, find
from cometmq.client.errors import ClientError, RouteNotFoundError
from cometmq.message.hosts import parse_address, stored_ip
from cometmq.message.message import MessageExt
from cometmq.remoting.bodies import TopicRouteData
from cometmq.remoting.permissions import Action, Need, on_group, on_topic


async def why_not_consumed(admin: Admin, question: Question) -> Explanation:
    """Explain why a group has not consumed a message. Nothing is changed.

    :raises ValueError: the question names neither an id nor an offset.
    :raises ClientError: the topic has no such queue.
    :raises BrokerError: a broker refuses to show the message, for example because of a missing permission.
    :raises RemotingError: a server does not answer.
    """
    if not question.msg_id and question.offset is None:
        raise ValueError("the message needs an id, or a queue and an offset")
    try:
        found = await find(admin, question)
    except RouteNotFoundError:
        evidence = f"Topic {question.topic_in_words} does not exist, or no broker with it is registered."
        step = "Check the name with cometmq topic list, and the brokers with cometmq cluster list."
        return Explanation(question, (Check("topic", Verdict.CAUSE, evidence, step),), question.msg_id)
    topic = Check("topic", Verdict.RULED_OUT, f"Topic {question.topic_in_words} exists.")
    if isinstance(found, Extent):
        return Explanation(question, (topic, stored.out_of_range(question, found)))
    if found is None:
        return Explanation(question, (topic, *await stored.absent(admin, question)), question.msg_id)
    route = await admin.topic_route(question.topic)
    message = _with_broker(found, route)
    checks = (topic, *await _checks(admin, question, message, route))
    return Explanation(question, checks, message.msg_id, message.broker_name, message.queue_id, message.queue_offset)


async def _checks(admin: Admin, question: Question, message: MessageExt, route: TopicRouteData) -> list[Check]:
    now_ms = admin.instance.clock.now_ms()
    facts = await facts_of(admin, question, message)
    place = f"offset {message.queue_offset} of queue {message.queue_id} on {message.broker_name}"
    position = consumption.position(question, facts, message)
    is_reached = position.verdict in (Verdict.CONSUMED, Verdict.POSSIBLE)
    return [
        Check("stored", Verdict.RULED_OUT, f"The message is stored at {place}."),
        *([] if is_reached else [stored.life_time(message, now_ms), stored.readable(message, question.topic, route)]),
        consumption.may_consume(question, facts),
        *([await _permission(admin, question, facts)] if question.account else []),
        consumption.dead_letter(question, facts),
        consumption.retry(facts, now_ms),
        *([] if is_reached else [consumption.online(question, facts)]),
        consumption.subscribes(question, facts, message),
        *([] if is_reached else [consumption.owner(facts, message)]),
        consumption.in_flight(facts, message),
        position,
    ]


async def _permission(admin: Admin, question: Question, facts: GroupFacts) -> Check:
    """Check that the account of the group's members may receive the topic's messages."""
    name = question.account
    for need in (on_topic(question.topic, Action.SUB), on_group(question.group, Action.SUB)):
        decision = await tried(_decision(admin, name, need, facts.member_address))
        if isinstance(decision, Unavailable):
            evidence = f"The permissions of account {name} are not known: {decision.reason}."
            return Check("permission", Verdict.UNKNOWN, evidence)
        if not decision.allowed:
            evidence = f"Account {name} may not receive: {need.resource} needs Sub, but {decision.why.rstrip('.')}."
            step = f"Permit Sub on {need.resource}: cometmq acl create {name} {need.resource} --action Sub"
            return Check("permission", Verdict.CAUSE, evidence, step)
    return Check("permission", Verdict.RULED_OUT, f"Account {name} may receive messages of the topic with this group.")


async def _decision(admin: Admin, name: str, need: Need, source: str) -> Decision:
    """Return the decision of a broker with users and policies (ACL 2.0) or with ``plain_acl.yml`` (ACL 1.0)."""
    cluster = next(iter((await admin.cluster_info()).cluster_addr_table), "")
    users = await tried(decision_of(admin, name, need, source, cluster=cluster))
    if not isinstance(users, Unavailable):
        return users
    plain = await tried(admin.plain_accounts())
    if isinstance(plain, Unavailable):
        raise ClientError(users.reason)
    account = next((one for one in plain.plain_access_configs or () if one.access_key == name), None)
    if account is None:
        return Decision(False, "the brokers do not have this account")
    return plain_decision(account, plain.global_white_addrs or (), need, source)


def _with_broker(message: MessageExt, route: TopicRouteData) -> MessageExt:
    """Fill in the broker's name, which a search by offset id does not return."""
    if not message.broker_name:
        host, port = parse_address(message.store_host)
        for broker in route.broker_datas:
            for address in broker.broker_addrs.values():
                at = parse_address(address)
                if at[1] == port and stored_ip(at[0]) in (host, None):
                    message.broker_name = broker.broker_name
        if not message.broker_name and len(route.broker_datas) == 1:
            message.broker_name = route.broker_datas[0].broker_name
    return message
