"""The document as a register with compare-and-swap: its history, and the calls of members.

Each document has its own version, so a history of calls is linearizable exactly if the swaps form one chain, and no
call saw an earlier document than a call that had ended before it began.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tests.failover.checker.findings import Finding

from cometmq.broker.failover.document import Document


@dataclass(frozen=True, slots=True)
class Call:
    """A read or a swap of the register.

    :param seen: the version that was read, or that the engine had after a swap; ``None`` if there was no answer.
    :param expected: of a swap: the version that it replaces; ``None`` for a read.
    :param is_done: of a swap: whether it was done.
    """

    client: str
    began: float
    ended: float
    seen: str | None
    expected: str | None = None
    is_done: bool = False

    def __str__(self) -> str:
        verb = "reads" if self.expected is None else f"swaps {self.expected or 'nothing'!r}"
        took = f"{self.began:.3f} to {self.ended:.3f}"
        return f"{self.client} {verb} ({took}): {'done, ' if self.is_done else ''}version {self.seen or 'unknown'}"


def check_register(calls: Sequence[Call], chain: Sequence[str]) -> list[Finding]:
    """Return the calls that no single register answers so.

    :param chain: the versions of all documents in their order, beginning with "" (no document).
    """
    place = {version: at for at, version in enumerate(chain)}
    findings = []
    winners: dict[str, Call] = {}
    for call in calls:
        if call.seen is not None and call.seen not in place:
            findings.append(Finding("unknown version", f"{call}; the register never had it"))
        if not call.is_done or call.expected is None:
            continue
        if call.expected in winners:
            findings.append(Finding("two swaps", f"{winners[call.expected]}; {call}: both replace one version"))
        winners[call.expected] = call
        if place.get(call.seen or "", -1) != place.get(call.expected, -1) + 1:
            findings.append(Finding("broken chain", f"{call}; this is not the next version"))
    return [*findings, *_stale([call for call in calls if call.seen in place], place)]


def _stale(calls: Sequence[Call], place: dict[str, int]) -> list[Finding]:
    findings = []
    ended = sorted(calls, key=lambda call: call.ended)
    done, latest = 0, None
    for call in sorted(calls, key=lambda call: call.began):
        while done < len(ended) and ended[done].ended < call.began:
            if latest is None or place[ended[done].seen or ""] > place[latest.seen or ""]:
                latest = ended[done]
            done += 1
        if latest is not None and place[call.seen or ""] < place[latest.seen or ""]:
            findings.append(Finding("stale read", f"{call}, after {latest}"))
    return findings


def check_documents(documents: Sequence[Document], *, forced: frozenset[int] = frozenset()) -> list[Finding]:
    """Return the changes of a set's document that the protocol does not allow.

    :param forced: epochs whose master a person chose.
    """
    findings = []
    for before, after in itertools.pairwise(documents):
        change = f"{_short(before)} -> {_short(after)}"
        if after.set_id != before.set_id:
            findings.append(Finding("document", f"{change}: another set"))
        if after.serial != before.serial + 1:
            findings.append(Finding("document", f"{change}: the serial numbers do not follow each other"))
        if after.epoch == before.epoch and after.master != before.master:
            findings.append(Finding("document", f"{change}: one epoch has two masters"))
        if after.epoch not in (before.epoch, before.epoch + 1):
            findings.append(Finding("document", f"{change}: the epochs do not follow each other"))
        is_election = after.epoch == before.epoch + 1
        if is_election and after.master not in before.in_sync and after.epoch not in forced:
            findings.append(Finding("document", f"{change}: the master was not in the in-sync set"))
    return findings


def _short(document: Document) -> str:
    in_sync = ",".join(map(str, sorted(document.in_sync)))
    return f"(epoch {document.epoch}, {document.serial}: {document.master} of {in_sync})"
