"""The tables and the picture of the comparison, from lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.peers.bars import Panel, bars
from benchmarks.peers.load import CASES, Case
from benchmarks.peers.systems import PEERS, Peer
from benchmarks.rounds import Figures, medians, table

Lines = Sequence[dict[str, Any]]
DRAWN = ("128 B, 64 × 1", "128 B, 16 × 32", "128 B, read")


def read(text: str) -> list[dict[str, Any]]:
    """The lines of JSON in the output of earlier runs."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def names(lines: Lines) -> dict[str, str]:
    """Name and version of each peer that was there."""
    versions = {line["peer"]: line["version"] for line in lines if "version" in line}
    return {peer.key: f"{peer.name} {versions[peer.key]}" for peer in PEERS if peer.key in versions}


def figures(lines: Lines, peer: str, **where: str) -> Figures:
    """The medians of a peer's rounds; nothing if there are none."""
    found = [line for line in lines if line.get("peer") == peer and where.items() <= line.items()]
    return medians([{**line, "round": 0} for line in found]) if found else {}


def uncounted(line: dict[str, Any], peers: Sequence[Peer] = PEERS, cases: Sequence[Case] = CASES) -> bool:
    """True if a server has not the messages that it has acknowledged.

    `mqload` ends without waiting for the last answers, so a server may have what was in flight.
    """
    if "stored" not in line:
        return False
    remoting = next(peer.remoting for peer in peers if peer.key == line["peer"])
    case = next(case for case in cases if case.name == line["case"])
    more = line["stored"] - line["messages"]
    return not 0 <= more <= (case.connections * case.window if remoting else 0)


def report(lines: Lines) -> str:
    """Markdown: processor time, rates, latencies, settings and memory, and what went wrong."""
    known = names(lines)
    sends = [case for case in CASES if not case.reads]

    def rows(cases: Sequence[Case], cell: Callable[[Figures], str]) -> list[list[str]]:
        found = [(name, [figures(lines, key, case=case.name) for case in cases]) for key, name in known.items()]
        return [[name, *(cell(one) if one else "—" for one in row)] for name, row in found]

    def best(figure: str, shape: str, better: Callable[..., str]) -> list[list[str]]:
        """Rows of one figure, the best of each column in bold."""
        found = rows(CASES, lambda one: format(one[figure], shape))
        for column in range(1, len(CASES) + 1):
            values = {row[column]: float(row[column].replace(",", "")) for row in found if row[column] != "—"}
            if len(values) > 1:
                first = better(values, key=values.__getitem__)
                for row in found:
                    row[column] = f"**{first}**" if row[column] == first else row[column]
        return found

    heads = ["processor time of the server for a message, µs", *(case.name for case in CASES)]
    parts = [table(heads, *best("cpu_us", ".1f", min))]
    parts.append(table(["messages per second", *heads[1:]], *best("per_s", ",.0f", max)))
    parts.append(
        table(
            ["p50 / p99, ms", *(case.name for case in sends)],
            *rows(sends, lambda one: f"{one['p50_us'] / 1e3:.1f} / {one['p99_us'] / 1e3:.1f}"),
        )
    )
    parts.append(_servers(lines, known))
    parts += [f"* **{line['peer']}** cannot be had here: {line['missing']}" for line in lines if "missing" in line]
    parts += [
        f"* **{line['peer']}** broke off in round {line['round']}: {line['broke']}" for line in lines if "broke" in line
    ]
    parts += [
        f"* **{line['peer']}** has {line['stored']:,} messages in *{line['case']}*, not {line['messages']:,}"
        for line in lines
        if uncounted(line)
    ]
    return "\n\n".join([*parts, _run(lines)])


def _servers(lines: Lines, known: dict[str, str]) -> str:
    rows = []
    for peer in PEERS:
        if peer.key in known:
            empty, after = (figures(lines, peer.key, memory=when) for when in ("empty", "after"))
            memory = f"{empty['anonymous_mb']:.0f} / {after['anonymous_mb']:.0f} MB" if after else "—"
            resident = f"{after['resident_mb']:,.0f} MB" if after else "—"
            rows.append([known[peer.key], peer.settings, memory, resident])
    return table(["system", "settings", "anonymous memory, started / after", "resident memory after"], *rows)


def _run(lines: Lines) -> str:
    said = [f"{line['rounds']} × {line['seconds']:g} s. {line['verdict']}" for line in lines if "verdict" in line]
    counted = [line for line in lines if "stored" in line]
    right = sum(not uncounted(line) for line in counted)
    busiest = max((line["generator"] for line in lines if "generator" in line), default=0.0)
    checks = f"After {right} of {len(counted)} sends the server had the messages that it had acknowledged."
    return " ".join([*said, checks, f"The generator was busy for at most {busiest:.0%} of a case."])


def paged(page: str, tables: str) -> str:
    """The text of a page with these tables between its marks.

    :raises ValueError: it has no marks.
    """
    head, begin, rest = page.partition("<!-- peers -->\n")
    _, end, tail = rest.partition("<!-- end of peers -->")
    if not begin or not end:
        raise ValueError("the page has no marks: <!-- peers --> and <!-- end of peers -->")
    return f"{head}{begin}{tables}\n{end}{tail}"


def picture(lines: Lines) -> str:
    """Bars of processor time for a message and of the rate."""
    known = names(lines)

    def groups(figure: str) -> dict[str, dict[str, float]]:
        return {
            case: {name: one[figure] for key, name in known.items() if (one := figures(lines, key, case=case))}
            for case in DRAWN
        }

    panels = (
        Panel("Processor time a message, µs (less is better)", groups("cpu_us"), 1),
        Panel("Messages per second (more is better)", groups("per_s")),
    )
    return bars(panels, list(known.values()), known.get("cometmq", ""))
