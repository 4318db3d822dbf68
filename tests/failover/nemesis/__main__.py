"""``python -m tests.failover.nemesis --seconds 600 --seed 1``: random faults against a set of real processes.

A story that breaks a promise is printed with the part of its history that shows it. The processes of one run are the
same machine's, so a seed repeats the faults, and not their moments to the microsecond.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.failover.nemesis.engines import ETCD, KUBERNETES
from tests.failover.nemesis.faults import FAULTS
from tests.failover.nemesis.members import running_set
from tests.failover.nemesis.story import Story
from tests.helpers import forks

from cometmq.testing.processes import ServerProcess

CONFIGURATIONS: tuple[dict[str, str], ...] = (
    {},
    {"minInSyncReplicas": "2"},
    {"flushDiskType": "SYNC_FLUSH"},
    {"mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": "20000"},
)
"""Keys of all members; each story has those of its seed."""
STORY_S = 120.0
"""A story ends after this time, and the next seed begins with empty stores."""


def main() -> int:
    """Tell stories; return 1 after one that breaks a promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--engine", choices=(ETCD, KUBERNETES), default=ETCD, help="the engine of the set")
    parser.add_argument("--engines", type=int, default=3, help="members of etcd")
    parser.add_argument("--only", nargs="*", choices=sorted(fault.name for fault in FAULTS), help="only these faults")
    parser.add_argument("--keep", type=Path, help="directory for stores, logs and histories")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if not options.only or fault.name in options.only]
    keep = options.keep or Path(tempfile.mkdtemp(prefix="cometmq-nemesis-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends all processes
    ServerProcess.popen = staticmethod(forks.start)
    begun, seed = time.monotonic(), options.seed
    while time.monotonic() < begun + options.seconds:
        left = begun + options.seconds - time.monotonic()
        keys = CONFIGURATIONS[seed % len(CONFIGURATIONS)]
        directory = keep / f"seed-{seed}"
        print(f"seed {seed} with {keys or 'default keys'}", flush=True)
        with running_set(directory, engine=options.engine, engines=options.engines, keys=keys) as members:
            story = Story(
                members, seed, say=lambda text: print(f"  {time.monotonic() - begun:6.1f} {text}", flush=True)
            )
            story.run(min(left, STORY_S), faults)
            print(f"  {story.summary()}", flush=True)
            if story.findings:
                print(story.report(directory))
                return 1
        seed += 1
    print(f"nothing found in {(time.monotonic() - begun) / 60:.1f} minutes")
    return 0


sys.exit(main())
