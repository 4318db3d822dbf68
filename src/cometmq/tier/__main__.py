"""The entry point of the archive reader's process; a broker starts it."""

import sys

from cometmq.tier.process import run

run(int(sys.argv[1]))
