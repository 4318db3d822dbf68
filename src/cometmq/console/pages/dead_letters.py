"""The dead-letter pages: groups with dead letters, reasons and times, and resending with a ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from cometmq.client.admin import END_OF_TIME_MS
from cometmq.client.admin.group_settings import groups_of_brokers
from cometmq.client.admin.several import gathered
from cometmq.client.consumer.newest import Found, Search, newest
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.pulling import PullStatus
from cometmq.client.dead_letters import (
    Ledger,
    Outcome,
    Selection,
    describe,
    names_of_groups,
    origin_topic,
    resend,
)
from cometmq.client.errors import RouteNotFoundError
from cometmq.console.limits import MAX_DEAD_LETTERS, PAGE_ROWS
from cometmq.console.listing import listing
from cometmq.console.page import Ask, FormError, Plan, Table, change, page
from cometmq.console.pages.messages import MessageLine
from cometmq.message.message import MessageExt
from cometmq.message.names import TOOLS_GROUP, check_group, dlq_topic
from cometmq.message.properties import MAX_RECONSUME_TIMES
from cometmq.remoting.bodies import MessageQueue
from cometmq.threads import in_thread

_WHYS_SHOWN: Final = 3


@dataclass(frozen=True)
class LetterLine:
    """A dead letter in the list."""

    message: MessageLine
    offset_msg_id: str
    origin_topic: str | None
    failures: int
    most: int | None
    """Maximum number of times that the message could be redelivered, or ``None`` if unknown."""

    @classmethod
    def of(cls, letter: MessageExt) -> LetterLine:
        """Create the list entry for a dead letter."""
        most = letter.properties.get(MAX_RECONSUME_TIMES, "")
        return cls(
            MessageLine.of(letter),
            letter.offset_msg_id,
            origin_topic(letter),
            letter.reconsume_times,
            int(most) if most.isdecimal() and len(most) <= 9 else None,
        )

    @property
    def place(self) -> str:
        """Return the message's queue and offset as a form value."""
        return f"{self.message.broker}/{self.message.queue_id}/{self.message.offset}"


async def show_list(ask: Ask) -> Response:
    """Show the groups with dead letters."""
    found = listing(await names_of_groups(ask.admin), ask.text("q"), ask.whole("page"))
    lines = await gathered({name: describe(ask.admin, name) for name in found.names})
    template = "dead_letters/rows.html" if ask.is_part else "dead_letters/list.html"
    return ask.page(template, found=found, lines=lines)


async def show_group(ask: Ask) -> Response:
    """Show the newest dead letters of a group."""
    group = _group(ask)
    found = await _found(ask, group)
    start = ((ask.whole("page", least=1, most=MAX_DEAD_LETTERS) or 1) - 1) * PAGE_ROWS
    retries: dict[str, int | None] = {
        name: config.retry_max_times
        for name, config in (await groups_of_brokers(ask.admin, group, await ask.admin.masters())).items()
    }
    return ask.page(
        "dead_letters/group.html",
        group=group,
        letters=found.messages[start : start + PAGE_ROWS],
        count=len(found.messages),
        number=start // PAGE_ROWS + 1,
        last=max(1, -(-len(found.messages) // PAGE_ROWS)),
        is_complete=found.is_complete,
        looked_at=MAX_DEAD_LETTERS,
        retries=retries,
        sent=await in_thread(_sent_before, _ledger(ask, group)),
    )


def _group(ask: Ask) -> str:
    group = ask.path("group")
    wrong = check_group(group)
    if wrong is not None:
        raise FormError(ask.t("{name} is not a valid group name: {wrong}", name=group, wrong=wrong))
    return group


def _ledger(ask: Ask, group: str) -> Path:
    return ask.console.options.ledgers / f"{quote(group, safe='')}.ledger"


def _sent_before(path: Path) -> frozenset[str]:
    if not path.exists():
        return frozenset()
    with Ledger(path) as ledger:
        return frozenset(ledger.sent)


async def _found(ask: Ask, group: str) -> Found[LetterLine]:
    """Find the newest dead letters that match the form. At most :data:`MAX_DEAD_LETTERS` in its time range are
    searched.
    """
    begin, end = ask.period()
    wanted = Selection(
        key=ask.text("key") or None,
        tag=ask.text("tag") or None,
        origin_topic=ask.topic() or None,
        begin_ms=begin or 0,
        end_ms=END_OF_TIME_MS if end is None else end,
    )
    search = Search(
        dlq_topic(group),
        wanted.begin_ms or None,
        None if end is None else end + 1,
        wanted=MAX_DEAD_LETTERS,
        effort=4 * MAX_DEAD_LETTERS,
    )

    def keep(letter: MessageExt) -> LetterLine | None:
        return LetterLine.of(letter) if wanted.takes(letter) else None

    try:
        async with PullConsumer(TOOLS_GROUP, instance=ask.admin.instance) as consumer:
            found = await newest(consumer, search, keep)
    except RouteNotFoundError:
        return Found([], 0, is_complete=True)
    is_complete = found.is_complete and len(found.messages) < MAX_DEAD_LETTERS
    return Found([line for line in found.messages if line is not None], found.looked_at, is_complete=is_complete)


# --- sending again --------------------------------------------------------------------------------
async def send_again(ask: Ask) -> Plan:
    """Resend dead letters to their original topics: the marked ones, or all that match the page's filters."""
    group = _group(ask)
    found = (await _found(ask, group)).messages
    if ask.text("which") != "all":
        marked = {value for value in ask.form.getlist("letter") if isinstance(value, str)}
        found = [line for line in found if line.place in marked]
        if len(found) < len(marked):
            raise FormError(
                ask.t("{count} of these dead letters no longer exist", count=len(marked) - len(found)),
                next_step=ask.t("reload the page, and mark others"),
            )
    if not found:
        raise FormError(ask.t("no dead letter is marked"), next_step=ask.t("mark some in the list"))
    sent = await in_thread(_sent_before, _ledger(ask, group))
    new = [line for line in found if line.offset_msg_id not in sent]
    topics = Counter(line.origin_topic for line in new)
    warnings = []
    if len(new) < len(found):
        warnings.append(ask.t("{count} of them were already resent and are skipped.", count=len(found) - len(new)))
    if topics[None]:
        warnings.append(ask.t("{count} do not name their original topic and are skipped.", count=topics[None]))

    address = f"/dead-letters/{quote(group, safe='')}"
    return Plan(
        title=ask.t("Resend dead letters of {group}", group=group),
        sentence=ask.t(
            "{count} dead letters are sent to their topics, each once, oldest first. All groups of a topic get them.",
            count=sum(topics.values()) - topics[None],
        ),
        action=ask.t("Resend them"),
        what="dead-letters.resend",
        subject=group,
        run=lambda: _sent_again(ask, group, list(reversed(new))),
        then=address,
        back=address,
        warnings=warnings,
        table=Table(
            (ask.t("Topic"), ask.t("Dead letters")),
            [(topic, count) for topic, count in sorted(topics.items(), key=lambda one: str(one[0])) if topic],
        ),
        details={"letters": len(new), "first": new[-1].offset_msg_id if new else ""},
    )


async def _sent_again(ask: Ask, group: str, lines: Sequence[LetterLine]) -> str:
    if group in ask.console.resending:
        raise FormError(
            ask.t("dead letters of {group} are already being resent", group=group),
            next_step=ask.t("wait until that is done, then reload the page"),
        )
    ask.console.resending.add(group)
    outcomes: Counter[Outcome] = Counter()
    whys: dict[str, None] = {}

    def report(_: MessageExt, outcome: Outcome, why: str) -> None:
        outcomes[outcome] += 1
        if why and len(whys) < _WHYS_SHOWN:
            whys[why] = None

    ledger = Ledger(_ledger(ask, group))
    try:
        await in_thread(ledger.__enter__)
        try:
            await resend(ask.admin, _letters(ask, group, lines), ledger, report)
        finally:
            ledger.__exit__()
    finally:
        ask.console.resending.discard(group)
    sent, failed = outcomes[Outcome.SENT], len(lines) - outcomes[Outcome.SENT] - outcomes[Outcome.SENT_BEFORE]
    if failed:
        why = " ".join(whys) or ask.t("they are no longer stored")
        raise FormError(
            ask.t("{sent} dead letters were sent again, {failed} were not: {why}", sent=sent, failed=failed, why=why),
            next_step=ask.t("send them again once the cause is fixed: the ledger knows which ones were sent"),
        )
    return ask.t("{sent} dead letters were sent again.", sent=sent)


async def _letters(ask: Ask, group: str, lines: Sequence[LetterLine]) -> AsyncIterator[MessageExt]:
    """Read each dead letter just before it is sent, since a thousand bodies could occupy several gigabytes."""
    async with PullConsumer(TOOLS_GROUP, instance=ask.admin.instance) as consumer:
        for line in lines:
            place = line.message
            queue = MessageQueue(dlq_topic(group), place.broker, place.queue_id)
            result = await consumer.pull(queue, place.offset, 1)
            if result.status is PullStatus.FOUND and result.messages[0].queue_offset == place.offset:
                yield result.messages[0]


ROUTES = (
    page("/dead-letters", show_list),
    page("/dead-letters/{group}", show_group),
    change("/dead-letters/{group}/resend", send_again),
)
