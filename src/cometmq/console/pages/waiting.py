"""The page of waiting messages: delayed messages, and messages in open transactions."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final, TypeVar

from starlette.responses import Response

from cometmq.client.admin import END_OF_TIME_MS
from cometmq.client.admin.several import asked_masters
from cometmq.client.consumer.newest import Found, Search, newest
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.errors import BrokerError, RouteNotFoundError, UnknownBrokerError
from cometmq.client.producer.producer import Producer
from cometmq.console.page import Ask, FormError, NotFoundError, Plan, Table, change, page
from cometmq.console.rendering import time_element
from cometmq.message.ids import RecallHandle
from cometmq.message.message import MessageExt
from cometmq.message.names import RETRY_PREFIX, TOOLS_GROUP, TRANS_CHECK_MAX_TIME_TOPIC
from cometmq.message.properties import PGROUP, REAL_TOPIC
from cometmq.remoting.admin_bodies import OpenTransaction, TopicTimerMetrics, WaitingMessage
from cometmq.remoting.codes import ResponseCode

ROWS: Final = 200
"""Maximum number of rows in each table."""
_COUNTS: Final = 1_000
_PRODUCER_GROUP: Final = "cometmq-console"
_T = TypeVar("_T")


@dataclass(frozen=True)
class GivenUp:
    """A transaction that was given up, so that the broker no longer checks it."""

    offset_msg_id: str
    transaction_id: str
    topic: str | None
    group: str | None
    given_up_ms: int

    @classmethod
    def of(cls, message: MessageExt) -> GivenUp:
        """Create the entry from the transaction's message."""
        properties = message.properties
        return cls(
            message.offset_msg_id,
            message.msg_id,
            properties.get(REAL_TOPIC),
            properties.get(PGROUP),
            message.store_timestamp,
        )


async def show_delayed(ask: Ask) -> Response:
    """Show the waiting messages and their due times."""
    topic, admin = ask.topic(), ask.admin
    begin, end = ask.period()
    unable: list[str] = []

    async def counted(name: str, address: str) -> dict[str, TopicTimerMetrics]:
        return await _known(admin.waiting(address), {}, name, unable)

    async def listed(name: str, address: str) -> list[WaitingMessage]:
        asking = admin.waiting_messages(
            address,
            topic=topic or None,
            begin_ms=begin or 0,
            end_ms=END_OF_TIME_MS if end is None else end,
            limit=ROWS + 1,
        )
        return await _known(asking, [], name, unable)

    counts = [
        (name, one, metric)
        for name, metrics in sorted((await asked_masters(admin, counted)).items())
        for one, metric in sorted(metrics.items())
        if metric.count and topic in ("", one)
    ]
    found = await asked_masters(admin, listed)
    lines = sorted(
        ((name, message) for name, messages in found.items() for message in messages),
        key=lambda named: (named[1].due, named[0], named[1].position),
    )
    return ask.page(
        "waiting/delayed.html",
        counts=counts[:_COUNTS],
        lines=lines[:ROWS],
        is_complete=len(lines) <= ROWS,
        can_be_recalled=_can_be_recalled,
        unable=sorted(set(unable)),
    )


async def _known(asking: Awaitable[_T], nothing: _T, name: str, unable: list[str]) -> _T:
    """Await the answer to a request that some brokers do not support, and record those brokers' names."""
    try:
        return await asking
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        unable.append(name)
        return nothing


def _can_be_recalled(message: WaitingMessage) -> bool:
    """Return True if a broker can recall a message: the message must have an id and must not be a retry."""
    return bool(message.uniq_key) and " " not in message.uniq_key and not message.topic.startswith((RETRY_PREFIX, "?"))


async def recall(ask: Ask) -> Plan:
    """Recall a waiting message, so that it is never delivered."""
    broker, topic, msg_id = ask.text("broker"), ask.text("topic"), ask.text("id")
    due = ask.whole("due") or 0
    masters = await ask.admin.masters()
    if broker not in masters:
        raise NotFoundError(ask.t("broker {name} is not available now", name=broker))
    around = await ask.admin.waiting_messages(
        masters[broker], topic=topic, begin_ms=due, end_ms=due + 1, limit=100 * ROWS
    )
    here = [one for one in around if one.uniq_key == msg_id and _can_be_recalled(one)]
    if not here:
        raise NotFoundError(
            ask.t("message {id} is no longer waiting", id=msg_id),
            next_step=ask.t("it was already delivered or recalled"),
        )

    async def run() -> str:
        async with Producer(_PRODUCER_GROUP, instance=ask.admin.instance) as producer:
            await producer.recall(RecallHandle(topic, broker, due, msg_id).encode())
        return ask.t("Message {id} is recalled.", id=msg_id)

    return Plan(
        title=ask.t("Recall message {id}", id=msg_id),
        sentence=ask.t("The message will never be delivered. A recall cannot be undone."),
        action=ask.t("Recall it"),
        what="message.recall",
        subject=msg_id,
        run=run,
        then="/delayed",
        back="/delayed",
        table=Table(
            (ask.t("Topic"), ask.t("Broker"), ask.t("Due"), ask.t("Bytes")),
            [(one.topic, broker, time_element(one.due, ask.zone), one.size) for one in here],
        ),
        details={"topic": topic, "broker": broker, "due": due},
    )


# --- transactions ---------------------------------------------------------------------------------
async def show_transactions(ask: Ask) -> Response:
    """Show open transactions, and transactions that brokers have given up."""
    group, admin = ask.text("group"), ask.admin
    unable: list[str] = []

    async def listed(name: str, address: str) -> list[OpenTransaction]:
        return await _known(admin.open_transactions(address, group=group or None, limit=ROWS + 1), [], name, unable)

    found = await asked_masters(admin, listed)
    lines = sorted(
        ((name, one) for name, transactions in found.items() for one in transactions),
        key=lambda named: (named[1].begun, named[0]),
    )
    given_up = await _given_up(ask)
    return ask.page(
        "waiting/transactions.html",
        lines=lines[:ROWS],
        is_complete=len(lines) <= ROWS,
        now=ask.console.clock.now_ms(),
        given_up=[one for one in given_up.messages if group in ("", one.group)],
        unable=sorted(set(unable)),
    )


async def _given_up(ask: Ask) -> Found[GivenUp]:
    try:
        async with PullConsumer(TOOLS_GROUP, instance=ask.admin.instance) as consumer:
            return await newest(consumer, Search(TRANS_CHECK_MAX_TIME_TOPIC, wanted=ROWS), GivenUp.of)
    except RouteNotFoundError:  # no transaction was ever given up here
        return Found([], 0, is_complete=True)


async def resume(ask: Ask) -> Plan:
    """Ask a broker to check a transaction again, although it has given the transaction up."""
    wanted = ask.text("id")
    found = next((one for one in (await _given_up(ask)).messages if one.offset_msg_id == wanted), None)
    if found is None:
        raise FormError(
            ask.t("this transaction is not among those given up most recently"),
            next_step=ask.t("reload the page, and choose one there"),
        )

    async def run() -> str:
        try:
            await ask.admin.resume_transaction(found.offset_msg_id)
        except UnknownBrokerError as error:
            raise NotFoundError(
                ask.t("{id} does not name a broker of this cluster", id=found.offset_msg_id),
                next_step=ask.t("its broker may have another address now; check that it runs"),
            ) from error
        return ask.t("The producers of {id} will be asked.", id=found.transaction_id)

    return Plan(
        title=ask.t("Check transaction {id} again", id=found.transaction_id),
        sentence=ask.t("The broker asks the producers of the group again whether to commit or to roll back."),
        action=ask.t("Check it again"),
        what="transaction.resume",
        subject=found.transaction_id,
        run=run,
        then="/transactions",
        back="/transactions",
        table=Table(
            (ask.t("Topic"), ask.t("Producer group"), ask.t("Given up")),
            [(found.topic, found.group, time_element(found.given_up_ms, ask.zone))],
        ),
        details={"topic": found.topic, "group": found.group},
    )


ROUTES = (
    page("/delayed", show_delayed),
    change("/delayed/recall", recall),
    page("/transactions", show_transactions),
    change("/transactions/resume", resume),
)
