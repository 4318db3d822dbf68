"""The rows: each fills one broker to a size, sends a little while it is at rest, and most start the broker again."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.rounds import Figures
from benchmarks.scale import delayed, delayed_store, stores
from benchmarks.scale.bench import Bench, worst
from benchmarks.scale.wire import (
    Wire,
    commit,
    heartbeat,
    make_group,
    make_topic,
    pop,
    query,
    request,
    reset,
    search,
    send,
    subscribe,
)
from tests.interop.systems import System

from cometmq.remoting.codes import RequestCode

ONE_MORE: Final = 20
OFFSET_TOPICS: Final = 1_000
OFFSET_QUEUES: Final = 10
"""Of each topic: a million offsets are 100,000 pairs of topic and group."""
TIMER_S: Final = 47 * 3_600
DELAYS_SENT: Final = 100_000
"""Delayed messages that are sent; the broker finds further ones at its start."""
FIRST_DUE: Final = "first-due"
"""A file with the due time of the first of these messages."""
LITE_PLAIN: Final = 10_000
"""Sends without a lite topic, beside which the others are measured."""
POP_QUEUES: Final = 8
POP_MESSAGES: Final = 32
FILTERED_TOPICS: Final = 100
SINGLE: Final = 20
"""Times that an operation is measured, whose median counts."""


def timed_ms(work: Callable[[int], object], times: int = SINGLE) -> float:
    """The median of the milliseconds that an operation takes.

    :param work: gets the number of the call.
    """
    took = []
    for number in range(times):
        begun = time.monotonic()
        work(number)
        took.append((time.monotonic() - begun) * 1000)
    return statistics.median(took)


def borne(bench: Bench, found: Figures, after: str, topic: str | None = None) -> Figures:
    """The figures of a broker that has just been filled: waits after the fill and at rest, then its starts."""
    waits = worst(bench.waits_for(bench.times.after))
    return {**found, f"longest wait after the {after}, ms": waits, **bench.at_rest(), **bench.ready(topic)}


def _per_s(wire: Wire, count: int, frames: Iterator[bytes]) -> float:
    begun = time.monotonic()
    wire.pour(frames)
    return count / (time.monotonic() - begun)


def _fill_topics(wire: Wire, count: int, queues: int = 5) -> None:
    wire.pour(make_topic(f"Topic-{number}", queues) for number in range(count))


def _first_messages(wire: Wire, count: int) -> None:
    wire.pour(send(f"Topic-{number}") for number in range(count))


def topics(bench: Bench, count: int) -> Figures:
    """So many topics of five queues, one message in one queue of each, registered with three nameservers."""
    last = f"Topic-{count - 1}"
    with bench.wire() as wire, Wire(bench.names[0].port) as names:
        _fill_topics(wire, count)
        found = {"creating one more topic, ms": timed_ms(lambda number: wire.ask(make_topic(f"More-{number}")))}
        _first_messages(wire, count)
        route = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=last)
        found["route of one, ms"] = timed_ms(lambda _: names.ask(route))
        table = request(RequestCode.GET_ALL_TOPIC_CONFIG)
        found["all topics of the broker, ms"] = timed_ms(lambda _: wire.ask(table), 3)
        listed = request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        found["all topics of a nameserver, ms"] = timed_ms(lambda _: names.ask(listed), 3)
    return borne(bench, found, "first messages", last)


def offsets(bench: Bench, count: int) -> Figures:
    """So many offsets, of groups that each read every queue of 1,000 topics; ten a second go on beside small sends."""
    return _offsets(bench, count, OFFSET_QUEUES)


def pairs(bench: Bench, count: int) -> Figures:
    """The same with one queue in each topic, so that each offset is that of another pair of topic and group."""
    return _offsets(bench, count, 1)


def _offsets(bench: Bench, count: int, queues: int) -> Figures:
    names = min(max(count // queues, 1), OFFSET_TOPICS)
    places = [
        (f"Group-{number // (names * queues)}", f"Topic-{number // queues % names}", number % queues)
        for number in range(count)
    ]
    with bench.wire() as wire, bench.wire() as member:
        _fill_topics(wire, names, min(count, queues))  # a reset needs an offset in each queue
        wire.ask(make_group("Group-0"))
        member.ask(heartbeat("10.0.0.1@1", "Group-0", "Topic-0"))  # only the offsets of a group with members are reset
        _first_messages(wire, names)
        found = {"commits/s": _per_s(wire, count, (commit(*place, 0) for place in places))}
        found["one more reset by time, ms"] = timed_ms(lambda _: wire.ask(reset("Group-0", "Topic-0", 0)))
    bench.changes = (commit(*place, 1) for place in itertools.cycle(places))
    return borne(bench, found, "commits")


def _delay(due_ms: int) -> str:
    return f"TIMER_DELIVER_MS\x01{due_ms}\x02"


def timers(bench: Bench, count: int) -> Figures:
    """So many messages that wait for two days."""
    due_ms = int((time.time() + TIMER_S) * 1000)
    with bench.wire() as wire:
        wire.ask(make_topic("Timers"))
        frames = (send("Timers", 0, _delay(due_ms + number)) for number in range(count))
        found = {"sends/s": _per_s(wire, count, frames)}
    return borne(bench, found, "sends")


def delays(bench: Bench, count: int) -> Figures:
    """So many messages that wait for seconds to three years, as many of each order of magnitude.

    At most 100,000 are sent; the broker finds the others at its start.
    """
    sent = min(count, DELAYS_SENT)
    now_ms = int(time.time() * 1000)
    with bench.wire() as wire:
        wire.ask(make_topic(delayed_store.TOPIC))
        frames = (
            send(delayed_store.TOPIC, 0, _delay(due_ms)) for due_ms in delayed_store.spread(now_ms, sent).tolist()
        )
        before = bench.processor_time()
        found = {"sends/s": _per_s(wire, sent, frames)}
        found["processor time per send, µs"] = (bench.processor_time() - before) / sent * 1e6
    written = bench.directory / FIRST_DUE
    first_ms = int(written.read_text()) if written.exists() else now_ms
    found |= delayed.deliveries(bench, delayed_store.TOPIC, first_ms)
    measured = borne(bench, found, "sends")
    delayed.check_none_is_lost(bench, delayed_store.TOPIC, count)
    return measured | {"anonymous memory after SIGKILL, MB": bench.held()["anonymous memory, MB"]}


def _write_delays(directory: Path, count: int) -> None:
    if count > DELAYS_SENT:
        first_ms = delayed_store.write(directory / "broker" / "store", count - DELAYS_SENT)
        (directory / FIRST_DUE).write_text(str(first_ms))


def halves(bench: Bench, count: int) -> Figures:
    """So many half messages that nobody ends."""
    with bench.wire() as wire:
        wire.ask(make_topic("Halves"))
        half = "TRAN_MSG\x01true\x02PGROUP\x01scale\x02UNIQ_KEY\x01{}\x02"
        frames = (send("Halves", 0, half.format(number)) for number in range(count))
        found = {"sends/s": _per_s(wire, count, frames)}
    return borne(bench, found, "sends")


def pops(bench: Bench, count: int) -> Figures:
    """So many messages that a group has popped and not acknowledged."""
    with bench.wire() as wire:
        wire.ask(make_topic("Pops", POP_QUEUES))
        spare = POP_QUEUES * POP_MESSAGES  # no pop has to wait for messages
        wire.pour(send("Pops", number % POP_QUEUES) for number in range(count + spare))
        begun = time.monotonic()
        times = -(-count // POP_MESSAGES)
        wire.pour(pop("scale", "Pops", POP_MESSAGES) for _ in range(times))
        found = {"pops/s": times / (time.monotonic() - begun)}
    return borne(bench, found, "pops")


def lite(bench: Bench, count: int) -> Figures:
    """So many lite topics of one parent topic, with a message in each."""
    with bench.wire() as wire:
        wire.ask(make_topic("Lite", attributes="+message.type=LITE"))
        begun = bench.processor_time()
        wire.pour(send("Lite") for _ in range(LITE_PLAIN))
        plain_s = (bench.processor_time() - begun) / LITE_PLAIN
        begun = bench.processor_time()
        wire.pour(send("Lite", 0, f"__LITE_TOPIC\x01session-{number:08d}\x02") for number in range(count))
        new_s = (bench.processor_time() - begun) / count
        found = {"plain send, processor time, us": plain_s * 1e6, "send to a new one, us": new_s * 1e6}
    return borne(bench, found, "sends")


def filters(bench: Bench, count: int) -> Figures:
    """So many groups that each read a topic with an expression of SQL92 of its own."""
    with bench.wire() as wire:
        _fill_topics(wire, FILTERED_TOPICS)
        frames = (
            subscribe(f"Group-{number}", f"Topic-{number % FILTERED_TOPICS}", f"a > {number} AND b IS NOT NULL")
            for number in range(count)
        )
        found = {"heartbeats/s": _per_s(wire, count, frames)}
    return borne(bench, found, "heartbeats")


def accounts(bench: Bench, count: int) -> Figures:
    """So many accounts of ACL 1.0 with ten rules each; requests of this machine need none."""
    directory = Path(bench.options.keys["aclPath"])

    def change(number: int) -> None:
        stores.write_accounts(directory, count + number)

    found = {"writing the file of accounts, ms": timed_ms(change, 2)}
    return borne(bench, found, "change of the file")


def log(bench: Bench, count: int) -> Figures:
    """A log of so many files of 1 GiB with holes: a hundred records each, then a filler."""
    with bench.wire() as wire:
        keys = [f"key-{number * stores.RECORDS_OF_FILE * count // SINGLE}" for number in range(SINGLE)]
        times = [stores.BEGIN_MS + count * stores.FILE_MS * number // SINGLE for number in range(SINGLE)]
        found = {
            "lookup by key, ms": timed_ms(lambda number: wire.ask(query(stores.TOPIC, keys[number]))),
            "lookup by time, ms": timed_ms(lambda number: wire.ask(search(stores.TOPIC, times[number]))),
        }
    measured = borne(bench, found, "lookups")
    with bench.wire() as wire:
        expire = request(RequestCode.DELETE_EXPIRED_COMMITLOG)
        measured["expiry of one more batch of files, ms"] = timed_ms(lambda _: wire.ask(expire), 3)
    return measured


def queues(bench: Bench, count: int) -> Figures:
    """So many queues in a log of holes, a file of 1 GiB for each hundred of them: 100,000 queues have 1 TB."""
    files = count // stores.RECORDS_OF_FILE
    with bench.wire() as wire:
        times = [stores.BEGIN_MS + files * stores.FILE_MS * number // SINGLE for number in range(SINGLE)]
        found = {"lookup by time, ms": timed_ms(lambda number: wire.ask(search(stores.TOPIC, times[number])))}
    measured = borne(bench, found, "lookups")
    expire = request(RequestCode.DELETE_EXPIRED_COMMITLOG)
    for name in ("first", "next"):
        begun = bench.processor_time()
        with bench.wire() as wire:
            wire.ask(expire)
        time.sleep(bench.times.steady)
        measured[f"expiry of the {name} files, processor time, s"] = bench.processor_time() - begun
    return measured | bench.loop_holds()


def clients(bench: Bench, count: int) -> Figures:
    """So many connections of producers and consumers, that come at once, send heartbeats, and leave at once."""
    with bench.wire() as wire:
        wire.ask(make_topic("Crowd"))
    before = bench.held()["anonymous memory, MB"]
    command = [sys.executable, "-m", "benchmarks.scale.crowd", str(bench.port), str(count), "Crowd"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as crowd:
        assert crowd.stdin is not None
        assert crowd.stdout is not None
        coming = threading.Thread(target=crowd.stdout.readline, daemon=True)
        coming.start()
        came = worst(bench.waits(coming.is_alive))
        if crowd.poll() is not None:
            raise RuntimeError("the clients could not come")
        rest = bench.at_rest()
        crowd.stdin.close()
        left = worst(bench.waits_for(bench.times.after))
    return {
        "longest wait while clients connect, ms": came,
        **rest,
        "longest wait while clients disconnect, ms": left,
        "anonymous memory before they connect, MB": before,
        "anonymous memory after they disconnect, MB": bench.held()["anonymous memory, MB"],
        **bench.loop_holds(),
    }


@dataclass(frozen=True)
class Row:
    """A kind of content with which a broker is filled, in steps of ten."""

    measure: Callable[[Bench, int], Figures]
    """Fills a broker that runs to a size, and measures it."""
    steps: tuple[int, ...]
    unit: str
    peer: System | None = None
    """Whose broker is measured beside ours; what has none here is measured alone."""
    most_of_peer: int = sys.maxsize
    """More takes the peer too long."""
    nameservers: int = 1
    keys: Mapping[str, str] = field(default_factory=dict)
    """Of the broker's configuration; ``{directory}`` is one of its own."""
    prepare: Callable[[Path, int], None] | None = None
    """Writes files into the directory before the broker starts."""


ROWS: Final[dict[str, Row]] = {
    "topics": Row(
        topics,
        (100, 1_000, 10_000, 20_000),
        "topics of five queues, a message in each",
        System.APACHE,
        10_000,
        nameservers=3,
    ),
    "offsets": Row(offsets, (1_000, 10_000, 100_000, 1_000_000), "offsets of groups over 1,000 topics", System.APACHE),
    "pairs": Row(pairs, (1_000, 10_000, 100_000, 990_000), "pairs of groups and 1,000 topics, an offset in each"),
    "timers": Row(timers, (10_000, 100_000, 1_000_000), "messages that wait for two days", System.APACHE5),
    "delays": Row(
        delays,
        (10_000, 100_000, 1_000_000, 10_000_000),
        "messages that wait for seconds to three years",
        keys={"timerMaxDelaySec": str(4 * 365 * 86_400)},
        prepare=_write_delays,
    ),
    "halves": Row(halves, (1_000, 10_000, 100_000, 1_000_000), "open transactions"),
    "pops": Row(pops, (1_000, 10_000, 100_000, 1_000_000), "messages popped and not acknowledged"),
    "lite": Row(lite, (1_000, 10_000, 100_000, 1_000_000), "lite topics with a message in each"),
    "filters": Row(
        filters, (100, 1_000, 9_000), "groups with an expression of SQL92", keys={"enablePropertyFilter": "true"}
    ),
    "accounts": Row(
        accounts,
        (100, 1_000, 10_000),
        "accounts of ACL 1.0 with ten rules each",
        keys={"aclEnable": "true", "aclPath": "{directory}/acl"},
        prepare=lambda directory, count: stores.write_accounts(directory / "acl", count),
    ),
    "log": Row(
        log,
        (10, 100, 1_000),
        "files of 1 GiB of a log with holes",
        keys={"fileReservedTime": "1", "deleteWhen": "00"},
        prepare=lambda directory, count: stores.write_log(directory / "broker" / "store", count),
    ),
    "queues": Row(
        queues,
        (1_000, 10_000, 100_000),
        "queues in a log with holes, a file of 1 GiB for each hundred",
        keys={"fileReservedTime": "1", "deleteWhen": "00"},
        prepare=lambda directory, count: stores.write_queues(directory / "broker" / "store", count),
    ),
    "clients": Row(clients, (100, 1_000, 10_000), "connections with heartbeats", System.APACHE),
}
