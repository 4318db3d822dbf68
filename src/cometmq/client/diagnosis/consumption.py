"""Checks of a group: whether it may consume a message, wants it, has tried it, and has reached it."""

from __future__ import annotations

from typing import Final

from cometmq.client.consumer.subscription import TAG
from cometmq.client.diagnosis.checks import Check, Question, Unavailable, Verdict, moment, quote
from cometmq.client.diagnosis.group import GroupFacts
from cometmq.client.diagnosis.stored import level_due_ms
from cometmq.filter.errors import FilterError
from cometmq.filter.selector import SQL92, parse_selector
from cometmq.message.message import MessageExt
from cometmq.message.names import dlq_topic
from cometmq.message.properties import DEAD_REASON, EXPIRED
from cometmq.message.tags import split_tags
from cometmq.quantity import quantity
from cometmq.remoting.admin_bodies import ConsumerRunningInfo, ProcessQueueInfo
from cometmq.remoting.bodies import SubscriptionData

_BROADCASTING: Final = "BROADCASTING"
_NAMED: Final = 5
"""Maximum number of members that a sentence names."""


def may_consume(question: Question, facts: GroupFacts) -> Check:
    """Check that the group exists and is not disabled."""
    group, config = question.group, facts.config
    if isinstance(config, Unavailable):
        return Check("group", Verdict.UNKNOWN, f"The group's settings are not known: {config.reason}.")
    if config is None:
        if facts.members:
            return Check("group", Verdict.RULED_OUT, f"Group {group} has members, but no settings of its own.")
        evidence = f"Group {group} does not exist on any broker."
        return Check("group", Verdict.CAUSE, evidence, f"Check the name, or run: cometmq group create {group}")
    if not config.consume_enable:
        evidence = f"Group {group} is not allowed to consume (consumeEnable is false)."
        return Check("group", Verdict.CAUSE, evidence, f"Run: cometmq group alter {group} --consume")
    if facts.model == _BROADCASTING and not config.consume_broadcast_enable:
        evidence = f"Group {group} may not consume in broadcasting mode (consumeBroadcastEnable is false)."
        return Check("group", Verdict.CAUSE, evidence, "Use clustering, or set consumeBroadcastEnable of the group.")
    return Check("group", Verdict.RULED_OUT, f"Group {group} exists and may consume.")


def subscribes(question: Question, facts: GroupFacts, message: MessageExt) -> Check:
    """Check that all members subscribe to the topic, in the same way, with an expression that matches the message."""
    topic = question.topic
    if isinstance(facts.connection, Unavailable):
        return Check("subscription", Verdict.UNKNOWN, f"The members are not known: {facts.connection.reason}.")
    known = facts.subscriptions(topic)
    if not known:
        return Check("subscription", Verdict.UNKNOWN, "The group has no members that report their subscriptions.")
    expressions: dict[str, list[str]] = {}
    for name, data in known.items():
        expressions.setdefault(_text(data), []).append(name)
    different = "; ".join(f"{text}: {_names(names)}" for text, names in expressions.items())
    if all(data is None for data in known.values()):
        evidence = f"No member of group {question.group} subscribes to topic {question.topic_in_words}."
        return Check("subscription", Verdict.CAUSE, evidence, "Add the topic to the subscription of its consumers.")
    missing = [data for data in known.values() if data is None or not matches(data, message)]
    if len(expressions) > 1 and missing:
        return Check(
            "subscription",
            Verdict.CAUSE,
            f"The members subscribe to topic {question.topic_in_words} differently ({different}), and not all of them "
            "want this message; brokers use the newest subscription for all.",
            "Give all members of a group the same subscription; use another group for another one.",
        )
    if len(expressions) > 1:
        evidence = (
            f"The members subscribe to topic {question.topic_in_words} differently ({different}), but all of them "
            "want this message."
        )
        return Check("subscription", Verdict.RULED_OUT, evidence)
    if missing:
        has = f"the tag {quote(message.tags)}" if message.tags else "no tag"
        if missing[0] is not None and missing[0].expression_type == SQL92:
            has = "properties for which it is not true"
        evidence = (
            f"The subscription filters the message out: it is {next(iter(expressions))}, and the message has {has}."
        )
        return Check(
            "subscription", Verdict.CAUSE, evidence, "Change the subscription, or the tag or properties of sends."
        )
    return Check("subscription", Verdict.RULED_OUT, f"All known members want the message: {different}.")


def matches(data: SubscriptionData, message: MessageExt) -> bool:
    """Return whether a subscription matches a message, as brokers and clients decide."""
    if data.expression_type == SQL92:
        try:
            return parse_selector(data.sub_string).matches(message.properties)
        except FilterError:
            return False
    return data.sub_string in ("", "*") or message.tags in (data.tags_set or split_tags(data.sub_string))


def dead_letter(question: Question, facts: GroupFacts) -> Check:
    """Check that the message is no dead letter of the group."""
    if isinstance(facts.retries, Unavailable):
        return Check("dead letter", Verdict.UNKNOWN, f"The dead letters cannot be searched: {facts.retries.reason}.")
    if not facts.retries.dead:
        return Check("dead letter", Verdict.RULED_OUT, f"{dlq_topic(question.group)} does not have the message.")
    letter = facts.retries.dead[-1]
    why = f"the group failed to consume it {quantity(max(letter.reconsume_times, 1), 'time')}"
    if letter.properties.get(DEAD_REASON) == EXPIRED:
        why = "its life time ended"
    evidence = f"The message is a dead letter since {moment(letter.store_timestamp)}, because {why}."
    step = f"Mend the cause, then run: cometmq dlq resend {question.group} --id {letter.offset_msg_id}"
    return Check("dead letter", Verdict.CAUSE, evidence, step)


def retry(facts: GroupFacts, now_ms: int) -> Check:
    """Check that the message does not wait for another attempt."""
    if isinstance(facts.retries, Unavailable):
        return Check("retry", Verdict.UNKNOWN, f"The retries cannot be searched: {facts.retries.reason}.")
    parked, delivered, dead = facts.retries.parked, facts.retries.delivered, facts.retries.dead
    last_parked = max((copy.reconsume_times for copy in parked), default=0)
    last_delivered = max((copy.reconsume_times for copy in delivered), default=0)
    if dead or not (parked or delivered):
        return Check("retry", Verdict.RULED_OUT, "The message does not wait for a retry.")
    step = "See why the consumer fails: its log, or cometmq message trace."
    if last_parked > last_delivered:
        due = level_due_ms(parked[-1])
        when = "" if due is None else f", at about {moment(due)}"
        late = " (that time is over: check the broker's log)" if due is not None and due < now_ms - 60_000 else ""
        evidence = f"The group failed to consume the message; it waits for retry {last_parked}{when}{late}."
        return Check("retry", Verdict.CAUSE, evidence, step)
    copy = delivered[-1]
    succeeded = (
        [] if isinstance(facts.consumptions, Unavailable) else [one for one in facts.consumptions if one.success]
    )
    if succeeded:
        return Check("retry", Verdict.RULED_OUT, f"Retry {last_delivered} of the message succeeded.")
    if facts.retries.committed is not None and copy.queue_offset < facts.retries.committed:
        evidence = f"The group failed to consume the message, received retry {last_delivered}, and reported no failure."
        return Check("retry", Verdict.POSSIBLE, evidence, step)
    evidence = (
        f"The group failed to consume the message; retry {last_delivered} of it is at offset {copy.queue_offset} of "
        f"queue {copy.queue_id} in {copy.stored_topic} since {moment(copy.store_timestamp)}, "
        "which the group has not reached."
    )
    return Check("retry", Verdict.CAUSE, evidence, "Start the group's consumers, or wait for them.")


def in_flight(facts: GroupFacts, message: MessageExt) -> Check:
    """Check that the message is not handed out and unacknowledged."""
    name = "in flight"
    if isinstance(facts.progress, Unavailable):
        return Check(name, Verdict.UNKNOWN, f"The group's progress is not known: {facts.progress.reason}.")
    for client, info in facts.infos.items():
        state = _queue_state(info, message)
        if state is not None and state.cached_msg_min_offset <= message.queue_offset <= state.cached_msg_max_offset:
            since = f", and finished a message last at {moment(state.last_consume_timestamp)}"
            evidence = (
                f"Member {quote(client)} has received the message and not finished it; it holds "
                f"{quantity(state.cached_msg_count, 'message')} of this queue"
                f"{since if state.last_consume_timestamp else ''}."
            )
            if state.cached_msg_count:
                return Check(
                    name, Verdict.CAUSE, evidence, "See what the listener does: its log, or its threads (jstack)."
                )
    if facts.progress is None or not facts.progress.in_flight:
        return Check(name, Verdict.RULED_OUT, "No message of the queue is handed out and unacknowledged.")
    count = facts.progress.in_flight
    evidence = (
        f"{quantity(count, 'message')} of this queue {'is' if count == 1 else 'are'} handed out and unacknowledged; "
        "this message may be among them. It is delivered again when its invisible time ends"
        f"{_from(facts.progress.visible_again_ms)}."
    )
    reached = isinstance(facts.committed, int) and message.queue_offset < facts.committed + count
    step = "Acknowledge messages, or wait until their invisible times end."
    return Check(name, Verdict.POSSIBLE if reached else Verdict.RULED_OUT, evidence, step if reached else "")


def position(question: Question, facts: GroupFacts, message: MessageExt) -> Check:
    """Compare the group's position with the message."""
    name, group, offset = "position", question.group, message.queue_offset
    if not isinstance(facts.consumptions, Unavailable):
        done = [call for call in facts.consumptions if call.success]
        if done:
            at = done[-1].begun_at_ms
            when = "" if at is None else f" at {moment(at)}"
            return Check(
                name,
                Verdict.CONSUMED,
                f"Group {group} has consumed the message{when}: client {quote(done[-1].client_host)}.",
            )
    if message.lite_topic is not None:
        evidence = f"The message belongs to lite topic {quote(message.lite_topic)}, which has offsets of its own."
        return Check(name, Verdict.UNKNOWN, evidence, f"Run: cometmq topic lite lag {question.topic} {group}")
    if facts.model == _BROADCASTING:
        evidence = "The group broadcasts: each member keeps its own offsets, which brokers do not know."
        return Check(name, Verdict.UNKNOWN, evidence)
    if isinstance(facts.committed, Unavailable):
        return Check(name, Verdict.UNKNOWN, f"The group's offset is not known: {facts.committed.reason}.")
    place = f"queue {message.queue_id} on {message.broker_name}"
    if facts.committed is None:
        start = "" if isinstance(facts.connection, Unavailable) else facts.connection.consume_from_where or ""
        evidence = f"Group {group} has never committed an offset in {place}."
        if "LAST" in start:
            evidence += " It starts at the end of a queue, so older messages are skipped."
        step = f"To read older messages, run: cometmq group reset {group} --topic {question.topic} --earliest"
        return Check(name, Verdict.CAUSE, evidence, step)
    if facts.committed > offset:
        evidence = (
            f"Group {group} is past the message: it reads offset {facts.committed} of {place} next, and the message "
            f"has {offset}. It has consumed the message, or skipped it (by a reset, a filter, or a start at the end)."
        )
        step = "Enable tracing (--trace, enable_msg_trace) to see when each message is consumed."
        return Check(name, Verdict.POSSIBLE, evidence, step)
    behind = offset - facts.committed
    evidence = (
        f"Group {group} has not reached the message: it reads offset {facts.committed} of {place} next, "
        f"{quantity(behind, 'message')} before this one."
    )
    step = "Wait, or add consumers and queues." if behind else "The message is next: see the other checks."
    return Check(name, Verdict.CAUSE, evidence, step)


def online(question: Question, facts: GroupFacts) -> Check:
    """Check that the group has members."""
    if isinstance(facts.connection, Unavailable):
        return Check("members", Verdict.UNKNOWN, f"The members are not known: {facts.connection.reason}.")
    if not facts.members:
        evidence = f"Group {question.group} has no online members."
        return Check(
            "members", Verdict.CAUSE, evidence, "Start its consumers, and check that they use this nameserver."
        )
    count = len(facts.members)
    return Check("members", Verdict.RULED_OUT, f"{quantity(count, 'member')} online: {_names(facts.members)}.")


def owner(facts: GroupFacts, message: MessageExt) -> Check:
    """Check that a member reads the message's queue and, if it consumes in order, holds its lock."""
    name = "queue owner"
    place = f"queue {message.queue_id} on {message.broker_name}"
    known = {client: info for client, info in facts.infos.items() if isinstance(info, ConsumerRunningInfo)}
    if not any(info.mq_table for info in known.values()):  # members that pop own no queues
        return Check(name, Verdict.UNKNOWN, "No member reports which queues it reads.")
    for client, info in known.items():
        state = _queue_state(info, message)
        if state is None or state.dropped:
            continue
        if info.properties.get("PROP_CONSUMEORDERLY", "").lower() == "true" and not state.locked:
            evidence = f"Member {quote(client)} consumes in order, and another member may hold the lock of {place}."
            return Check(
                name, Verdict.CAUSE, evidence, "Wait up to a minute; a lock of a member that ended expires then."
            )
        pulled = f", and pulled last at {moment(state.last_pull_timestamp)}" if state.last_pull_timestamp else ""
        return Check(name, Verdict.RULED_OUT, f"Member {quote(client)} reads {place}{pulled}.")
    if len(known) < len(facts.members):
        return Check(name, Verdict.UNKNOWN, f"No member that answers reads {place}; the others may.")
    evidence = f"No member reads {place}: the members have not divided the queues yet, or differently."
    return Check(name, Verdict.CAUSE, evidence, "Wait for the next rebalance (20 s); check that client ids differ.")


def _from(time_ms: int | None) -> str:
    return "" if time_ms is None else f", which is not before {moment(time_ms)}"


def _queue_state(info: ConsumerRunningInfo | Unavailable, message: MessageExt) -> ProcessQueueInfo | None:
    if isinstance(info, Unavailable):
        return None
    for queue, state in info.mq_table.items():
        if (queue.topic, queue.broker_name, queue.queue_id) == (
            message.stored_topic,
            message.broker_name,
            message.queue_id,
        ):
            return state
    return None


def _text(data: SubscriptionData | None) -> str:
    if data is None:
        return "not at all"
    return f"{quote(data.expression_type or TAG)} {quote(data.sub_string or '*')}"


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(map(quote, names[:_NAMED])) + more
