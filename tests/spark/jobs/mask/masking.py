"""A driver of the mask job in a process of its own, which can kill itself at a named point.

``python -m tests.spark.jobs.mask.masking NAMESRV TOPIC WORK TO MASTER_KEY_FILE POINT``; POINT is ``before-commit``
(the files of the second step are written, it is not committed), ``before-sent`` (the messages of the first step of the
replay are sent, the step is not done) or ``never``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

STEP = 200
"""Offsets of a step."""
RULES = ("$.phone=encrypt", "keys=hash", "$.email=drop")


def main(namesrv: str, topic: str, work: str, to: str, master_key: str, point: str) -> None:
    """Copy what is there."""
    from cometmq.archive.changes import Batch
    from cometmq.archive.commits import Commit
    from cometmq.spark.archives.log import ArchiveLog
    from cometmq.spark.jobs.mask.job import mask_to_topic
    from cometmq.spark.jobs.mask_rules import rules_from_options
    from cometmq.spark.jobs.message_source import MessageSource
    from cometmq.spark.jobs.replay.ledger import MappingFile, OpenedLedger, Plan, ReplayLedger, StepDone

    append, write_done = ArchiveLog.append, ReplayLedger.write_done

    def killing(self: ArchiveLog, batch: Batch) -> Commit | None:
        if point == "before-commit" and batch.batch_id == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return append(self, batch)

    def killing_too(self: ReplayLedger, opened: OpenedLedger, plan: Plan, mapping: Sequence[MappingFile]) -> StepDone:
        if point == "before-sent":
            os.kill(os.getpid(), signal.SIGKILL)
        return write_done(self, opened, plan, mapping)

    ArchiveLog.append = killing  # type: ignore[method-assign]
    ReplayLedger.write_done = killing_too  # type: ignore[method-assign]
    mask_to_topic(
        MessageSource(namesrv),
        topic,
        rules_from_options(RULES, subject="$.userId"),
        work,
        namesrv,
        to,
        keys=f"{work}/keys",
        master_key_file=master_key,
        hash_secret_file=master_key,
        step_offsets=STEP,
        master="local[2]",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
