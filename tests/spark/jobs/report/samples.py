"""A report of every job, and of the demo, with figures and names that are hard to show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from examples.demo.lake import Audited, Lake
from examples.demo.process import Sent
from examples.demo.report import compare, save
from examples.demo.stage import Observed, Plan, Sample

from cometmq.archive.commits import QueueTotals
from cometmq.client.trace.reader import Consumption, MessageWay
from cometmq.spark.jobs.archive.report import ArchiveReport
from cometmq.spark.jobs.archive.upkeep import HourChange, UpkeepReport
from cometmq.spark.jobs.audit.report import AuditReport, Disagreement, Lateness, QueueAudit, Span
from cometmq.spark.jobs.dead_letters import Counted, DeadLetterReport, GroupLetters, Resent
from cometmq.spark.jobs.delay.report import (
    DelayReport,
    DueInterval,
    LateMessage,
    Reason,
    StuckMessage,
    StuckReason,
    TimerBehind,
    TimerCount,
    WaitingTopic,
)
from cometmq.spark.jobs.delay.report import Lateness as LateDelivery
from cometmq.spark.jobs.key_index import IndexedTopic, KeyIndexReport
from cometmq.spark.jobs.mask.job import MaskReport
from cometmq.spark.jobs.rebuild.job import QueueUnits, RebuildReport
from cometmq.spark.jobs.replay.report import QueueReplayed, ReplayedStep, ReplayReport, TranslatedOffset
from cometmq.spark.jobs.report.report import Report, Step
from cometmq.spark.jobs.skew import HotKey, QueueLoad, SkewReport, TopicSkew
from cometmq.spark.jobs.trace import Latency, SlowConsumer, TraceReport

HOSTILE: Final = "<img src=x onerror=document.title='gone'>&amp;\x1b[2J\x00\ud800 $\\frac{$ 订单 " + "long-name-" * 12
"""A key that would be markup, a command to a terminal, an incomplete character, a formula, and too long."""
_NOW_MS: Final = 1_700_000_000_000
_HOUR_MS: Final = 3_600_000


def audit_report(queues: int = 40) -> AuditReport:
    return AuditReport(
        topic="orders",
        archive="/lake/orders",
        groups=("billing", HOSTILE),
        produced=1_234_567,
        queues=tuple(
            QueueAudit(f"broker-{n % 4}", n // 4, 0, 100_000 + n, 100_000, 99_000 + n, 0, 99_000, {"billing": 98_000})
            for n in range(queues)
        ),
        spans=tuple(Span(_NOW_MS + n * 60_000, 1_000_000 + 10_000 * n, 900_000, 800_000 + n) for n in range(100)),
        lateness=(Lateness("produced to stored", 2, 17, 1_204), Lateness("stored to archived", 2_000, 6_000, 9_000)),
        disagreements=(
            Disagreement(f"the key {HOSTILE} was stored twice", "look at it with cometmq message key"),
            Disagreement("broker-a 0: offsets 10 to 12 are not in the archive", "archive again"),
        ),
        notes=("messages of the last minute are not counted",),
        seconds=12.3,
    )


def archive_report() -> ArchiveReport:
    totals = tuple(QueueTotals("orders", "broker-a", n, 5, 505, 500) for n in range(4))
    warnings = ("messages orders broker-a 0 [1, 2) were gone before they were read",)
    return ArchiveReport("/lake/orders", 1500, 2_000_000, 3, 2, 2.0, False, warnings, totals)


def upkeep_report() -> UpkeepReport:
    hours = tuple(HourChange("orders", f"2024-01-{n + 1:02}", 40, 2, 9_000_000, 8_000_000, 5_000) for n in range(30))
    return UpkeepReport("compact", "/lake/orders", "delta", False, True, 3, hours, 4.5)


def replay_report() -> ReplayReport:
    return ReplayReport(
        archive="/lake/orders",
        topic="orders",
        to="orders-copy",
        ledger="/lake/ledger",
        replay_id="r1",
        dry_run=False,
        finished=True,
        messages=30_000,
        found=12,
        earlier=5,
        steps=tuple(ReplayedStep(10_000, 10_000 * (n + 1), 1.5 * (n + 1), n, 0) for n in range(3)),
        queues=tuple(QueueReplayed("broker-a", n, 3_750, 0, 0, 3_750) for n in range(8)),
        translated=(TranslatedOffset("billing", "broker-a", 0, 17, "3 messages come again"),),
        warnings=(),
        seconds=4.5,
    )


def delay_report() -> DelayReport:
    late = tuple(LateDelivery(f"topic-{n}", 100 + n, 0, 3, 12, 40, 1_200 + n) for n in range(12))
    due = [DueInterval("orders", _NOW_MS + n * _HOUR_MS, _NOW_MS + (n + 1) * _HOUR_MS, 10 * n + 1) for n in range(24)]
    return DelayReport(
        source="127.0.0.1:9876",
        at_ms=_NOW_MS,
        grace_ms=60_000,
        delivered=1_278,
        by_born=4,
        topics=late,
        levels=late[:3],
        hours=late,
        slowest=(LateMessage("orders", 3, HOSTILE, "7F0000", _NOW_MS, 9_000),),
        waiting=2_784,
        waiting_topics=(WaitingTopic("orders", 2_784, _NOW_MS, _NOW_MS + 24 * _HOUR_MS),),
        due=tuple(due),
        timer_counts=(TimerCount("broker-a", "orders", 30, None, None),),
        timers_behind=(TimerBehind("broker-a", 1_600),),
        stuck=3,
        stuck_reasons=(StuckReason(Reason.NO_TOPIC, "broker-a", HOSTILE, 3),),
        stuck_messages=(StuckMessage("broker-a", "orders", 0, HOSTILE, "7F0001", _NOW_MS, Reason.NO_TOPIC),),
        notes=("brokers of RocketMQ 4 do not count what waits",),
        seconds=3.1,
    )


def dead_letter_report() -> DeadLetterReport:
    counts = tuple(Counted(name, 1_000 - n, 1) for n, name in enumerate(("orders", "", HOSTILE, "payments")))
    return DeadLetterReport(
        source="127.0.0.1:9876",
        groups=(GroupLetters("billing", 1_997, _NOW_MS, _NOW_MS + 99 * _HOUR_MS),),
        topics=counts,
        tags=counts,
        keys=counts,
        reasons=counts,
        over_time=tuple((_NOW_MS + n * _HOUR_MS, 20 + n % 7) for n in range(0, 99, 2)),
        stretch_ms=_HOUR_MS,
        resent=(Resent("billing", 5, 1, 2, "the topic does not exist"),),
        dry_run=False,
        seconds=2.0,
    )


def key_index_report() -> KeyIndexReport:
    return KeyIndexReport("/lake/orders", "/lake/index", False, (IndexedTopic("orders", 5_000, 7_000),), 1.0)


def trace_report() -> TraceReport:
    calls = tuple(
        Consumption(
            group=f"group-{n}",
            client_host="10.0.0.1",
            request_id="r",
            begun_at_ms=_NOW_MS + 5 * n,
            cost_ms=3 * n,
            success=True,
        )
        for n in range(17)
    )
    return TraceReport(
        source="127.0.0.1:9876",
        trace_topic="RMQ_SYS_TRACE_TOPIC",
        messages=50_000,
        unconsumed=3,
        latencies=tuple(Latency(f"topic-{n}", HOSTILE, 10, 9, 1, 2, 40, 12, 30, 99, 1_000) for n in range(8)),
        slow=tuple(SlowConsumer(f"group-{n}", f"10.0.0.{n}", 100, 2, 12, 900 - n, 1_000) for n in range(10)),
        histogram=tuple((2**n, 1_000_000 // (n + 1)) for n in range(16)),
        written_to="/lake/traces",
        way=MessageWay(msg_id="7F0000", consumptions=calls),
        seconds=7.0,
    )


def skew_report() -> SkewReport:
    loads = tuple(QueueLoad("broker-a", n, 1_000 * n, 1_000_000 * n) for n in range(16))
    topics = tuple(
        TopicSkew(name, 120_000, 10**9, 77, 800.5, 1.87, 1.9, 0.33, 0.4, 24, ("some queues are empty",), loads)
        for name in ("orders", "payments")
    )
    keys = tuple(HotKey("orders", f"{HOSTILE}{n}", 9_000 - n, 10**6, 0.075, 1) for n in range(20))
    return SkewReport("/lake", "shardingKey", topics, keys, 5.0)


def mask_report() -> MaskReport:
    return MaskReport(
        source="/lake/orders",
        to="/lake/masked",
        dry_run=False,
        finished=True,
        messages=1_000,
        total=4_000,
        values={"body.$.email": 900, "property.phone": 700},
        apart={"no JSON": 3},
        steps=(Step(500, 500, 1.0), Step(500, 1_000, 2.0)),
        warnings=("no message has $.absent",),
        replayed=replay_report(),
        seconds=2.0,
        topics=("orders",),
    )


def rebuild_report() -> RebuildReport:
    return RebuildReport("/store", True, tuple(QueueUnits("orders", n, 5_000 + n, n % 3) for n in range(50)), 0, 3.0)


REPORTS: Final[dict[str, Callable[[], Report]]] = {
    "archive": archive_report,
    "audit": audit_report,
    "delay": delay_report,
    "dlq": dead_letter_report,
    "key-index": key_index_report,
    "mask": mask_report,
    "rebuild": rebuild_report,
    "replay": replay_report,
    "skew": skew_report,
    "trace": trace_report,
    "upkeep": upkeep_report,
}


def write_demo(directory: Path) -> Path:
    """Write the page of a demo that lost an event."""
    counts = dict.fromkeys(range(8), 25_000)
    sent = {queue: Sent(count, 7) for queue, count in counts.items()}
    found = Audited(True, counts, counts, counts, [])
    lake = Lake(
        archive_bytes=5_000_000,
        replayed=counts,
        of_archive=found,
        of_copy=found,
        events={**sent, 3: Sent(24_999, 6)},
        out_of_order=0,
        unlike=[],
        seconds={"archive": 3.0, "audit": 4.0, "replay": 5.0, "audit again": 6.0},
    )
    samples = [Sample(_NOW_MS + 100 * n, 2_000 * n, 2_000 * max(0, n - 3)) for n in range(101)]
    seen = Observed(
        sent, [100_000, 100_005], lake, samples, _NOW_MS + 4_000, _NOW_MS + 6_000, 12, {"stream": 9.0, "recovery": 0.4}
    )
    plan = Plan(200_000, 4, 2, 20_000, directory)
    save(plan, seen, compare(plan.messages, seen))
    return directory / "report.html"
