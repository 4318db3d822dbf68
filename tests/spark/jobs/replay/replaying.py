"""A driver of the replay job in a process of its own, which can kill itself at a named point.

``python -m tests.spark.jobs.replay.replaying NAMESRV ARCHIVE LEDGER TO POINT RATE``; POINT is ``before-commit``
(the messages of step 1 are sent, the step is not done) or ``never``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from cometmq.message.properties import decode_properties
from cometmq.message.record import StoredRecord
from cometmq.spark.jobs.replay.ledger import MappingFile, OpenedLedger, Plan, ReplayLedger, StepDone
from cometmq.spark.jobs.replay.sender import REPLAY_ORIGIN

STEP = 2000
"""Offsets of a step."""


def said_by(record: StoredRecord) -> tuple[Any, ...]:
    """Everything of a message that a replay promises to keep."""
    properties = decode_properties(record.properties_text)
    properties.pop(REPLAY_ORIGIN, None)
    properties.pop("CLUSTER", None)  # each Apache broker writes its own
    return record.body, record.flag, record.sys_flag & 0x701, properties


def main(namesrv: str, archive: str, ledger: str, to: str, point: str, rate: str) -> None:
    """Replay what is there."""
    from cometmq.spark.jobs.replay.job import replay

    write_done = ReplayLedger.write_done

    def killing(self: ReplayLedger, opened: OpenedLedger, plan: Plan, mapping: Sequence[MappingFile]) -> StepDone:
        if point == "before-commit" and plan.step == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return write_done(self, opened, plan, mapping)

    ReplayLedger.write_done = killing  # type: ignore[method-assign]
    replay(archive, namesrv, ledger, to=to, step_offsets=STEP, per_second=float(rate) or None, master="local[2, 4]")


if __name__ == "__main__":
    main(*sys.argv[1:])
