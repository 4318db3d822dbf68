"""The dlq job: why messages die, and another try for those that are chosen.

Counts are made in Spark, over every ``%DLQ%`` topic or those of some groups. Sending again is not Spark's: it is
:mod:`cometmq.client.resend` with a ledger, one message after the other, so that nothing is sent twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.client.admin import Admin
from cometmq.client.dead_letters import Selection, read_dead_letters
from cometmq.client.resend import Ledger, Outcome, resend
from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.message import MessageExt
from cometmq.message.names import DLQ_PREFIX, check_group, dlq_topic
from cometmq.message.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC
from cometmq.quantity import quantity
from cometmq.spark.dead_letters_report import Counted, DeadLetterReport, GroupLetters, Resent
from cometmq.spark.errors import OptionError
from cometmq.spark.job_source import MessageSource, job_session, kept
from cometmq.spark.reach import access_options, security_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TOP: Final = 20
HOUR_MS: Final = 3_600_000
_STRETCHES: Final = 400
"""Stretches of time at most; a longer history has longer ones."""
_COLUMNS: Final = ("topic", "msgId", "uniqKey", "tags", "keys", "properties", "storeTimestamp")


def dead_letters(
    source: MessageSource,
    groups: Sequence[str] = (),
    *,
    selection: Selection | None = None,
    reason: str | None = None,
    top: int = TOP,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    on_step: Callable[[str], object] = lambda _: None,
) -> DeadLetterReport:
    """Count dead letters by group, topic of origin, tag, key, time and reason.

    :param source: brokers, or an archive that holds ``%DLQ%`` topics.
    :param groups: consumer groups; all that have dead letters by default.
    :param selection: which of their dead letters; times of the source hold beside it.
    :param reason: property in which the application tells why a message failed.
    :param top: how many topics, tags, keys and reasons to name.
    :param spark: session to use; without one a session on ``master`` is made, and stopped at the end.
    :param on_step: told what the job begins to do.
    :raises OptionError: an argument is wrong, or a group has no dead letters.
    :raises SparkSourceError: the topics cannot be read.
    """
    for group in groups:
        if wrong := check_group(group):
            raise OptionError(f"{group!r} is no group name: {wrong}")
    began = SYSTEM_CLOCK.monotonic()
    topics = [dlq_topic(group) for group in dict.fromkeys(groups)] or source.topics(DLQ_PREFIX)
    if not topics:
        return DeadLetterReport(str(source), (), (), (), (), (), (), HOUR_MS, (), False, 0.0)
    source.queues(topics)
    with job_session(spark, master, "cometmq dlq") as session:
        from pyspark.sql import functions as f

        on_step(f"reading the dead letters of {quantity(len(topics), 'group')}")
        letters = _letters(source.read(session, topics, _COLUMNS), selection or Selection(), reason)
        with kept(letters) as rows:
            found = _groups(rows)
            on_step(f"counting {quantity(sum(of.letters for of in found), 'dead letter')}")
            stretch_ms = _stretch_ms(found)
            keys = rows.select("group", f.explode("keys").alias("key")).where("key <> ''")
            return DeadLetterReport(
                source=str(source),
                groups=found,
                topics=_counted(rows, "origin", top),
                tags=_counted(rows, "tags", top),
                keys=_counted(keys, "key", top),
                reasons=() if reason is None else _counted(rows, "reason", top),
                over_time=_over_time(rows, stretch_ms),
                stretch_ms=stretch_ms,
                resent=(),
                dry_run=False,
                seconds=SYSTEM_CLOCK.monotonic() - began,
            )


def send_again(
    namesrv: str,
    groups: Sequence[str],
    selection: Selection,
    *,
    ledgers: Path,
    rate: float | None = None,
    dry_run: bool = False,
    access: Mapping[str, str] | None = None,
    on_step: Callable[[str], object] = lambda _: None,
) -> tuple[Resent, ...]:
    """Send the chosen dead letters of groups again to the topics where they came from, each one once.

    :param ledgers: directory of one ledger for each group, ``dlq-GROUP.ledger``, which ``cometmq dlq resend`` has too.
    :param rate: messages a second at most.
    :param dry_run: send and write nothing; only count what would be sent.
    :param access: credentials and TLS, by the options of the source; what they leave open the environment says.
    :raises OptionError: the options for credentials and TLS are wrong.
    :raises LedgerError: a ledger cannot be read or written.
    :raises CometMQError: the cluster cannot be reached.
    """

    security = security_of(access_options(access))

    async def run() -> tuple[Resent, ...]:
        async with Admin(namesrv, security=security) as admin:
            return tuple([await one(admin, group) for group in dict.fromkeys(groups)])

    async def one(admin: Admin, group: str) -> Resent:
        outcomes: Counter[Outcome] = Counter()
        failures: list[str] = []
        letters = read_dead_letters(admin, group, selection)
        path = ledgers / f"dlq-{group}.ledger"
        if dry_run:
            sent: set[str] = set()
            if path.exists():
                with Ledger(path) as ledger:
                    sent = ledger.sent
            async for letter in letters:
                outcomes[Outcome.SENT_BEFORE if letter.offset_msg_id in sent else Outcome.SENT] += 1
        else:
            on_step(f"sending dead letters of {group} again")

            def report(_: MessageExt, outcome: Outcome, words: str) -> None:
                outcomes[outcome] += 1
                if words and not failures:
                    failures.append(words)

            with Ledger(path) as ledger:
                await resend(admin, letters, ledger, report, rate=rate)
        return Resent(
            group=group,
            sent=outcomes[Outcome.SENT],
            sent_before=outcomes[Outcome.SENT_BEFORE],
            failed=outcomes[Outcome.FAILED],
            first_failure="".join(failures),
        )

    return asyncio.run(run())


def _letters(messages: DataFrame, selection: Selection, reason: str | None) -> DataFrame:
    """The chosen dead letters, as :meth:`Selection.takes` chooses them."""
    from pyspark.sql import functions as f

    def told(name: str) -> Column:
        return f.try_element_at("properties", f.lit(name))

    keys = f.array_distinct(f.split(f.coalesce("keys", f.lit("")), " "))
    stored_ms = f.unix_millis("storeTimestamp")
    chosen = stored_ms.between(selection.begin_ms, selection.end_ms)
    if selection.key is not None:
        chosen &= f.array_contains(keys, selection.key)
    if selection.tag is not None:
        chosen &= f.col("tags") == selection.tag
    if selection.origin_topic is not None:
        chosen &= told(RETRY_TOPIC) == selection.origin_topic
    if selection.ids:
        ids = sorted(selection.ids)
        chosen &= f.col("msgId").isin(ids) | f.col("uniqKey").isin(ids) | told(ORIGIN_MESSAGE_ID).isin(ids)
    return messages.where(chosen).select(
        f.substring("topic", len(DLQ_PREFIX) + 1, 1 << 15).alias("group"),
        told(RETRY_TOPIC).alias("origin"),
        "tags",
        keys.alias("keys"),
        (f.lit(None).cast("string") if reason is None else told(reason)).alias("reason"),
        stored_ms.alias("storedMs"),
    )


def _groups(rows: DataFrame) -> tuple[GroupLetters, ...]:
    from pyspark.sql import functions as f

    sums = rows.groupBy("group").agg(f.count("*").alias("letters"), f.min("storedMs"), f.max("storedMs"))
    return tuple(GroupLetters(*row) for row in sums.orderBy(f.desc("letters"), "group").collect())


def _counted(rows: DataFrame, column: str, top: int) -> tuple[Counted, ...]:
    from pyspark.sql import functions as f

    value = f.coalesce(column, f.lit("")).alias("value")
    sums = rows.groupBy(value).agg(f.count("*").alias("letters"), f.count_distinct("group"))
    return tuple(Counted(*row) for row in sums.orderBy(f.desc("letters"), "value").limit(top).collect())


def _stretch_ms(groups: Sequence[GroupLetters]) -> int:
    if not groups:
        return HOUR_MS
    span_ms = max(of.newest_ms for of in groups) - min(of.oldest_ms for of in groups)
    return HOUR_MS * (1 + span_ms // (HOUR_MS * _STRETCHES))


def _over_time(rows: DataFrame, stretch_ms: int) -> tuple[tuple[int, int], ...]:
    from pyspark.sql import functions as f

    begin = (f.col("storedMs") - f.pmod("storedMs", f.lit(stretch_ms))).alias("begin")
    return tuple((row[0], row[1]) for row in rows.groupBy(begin).count().orderBy("begin").collect())
