"""The test kit: CometMQ inside a test, or beside it as processes that may be killed.

:class:`Cluster` runs a nameserver and brokers on the test's own event loop, with a clock that the test
may move (:class:`~cometmq.clock.VirtualClock`), may kill a broker as SIGKILL does, pause
it or disturb the :class:`Link` to it, and
says with :meth:`Cluster.inbox` what must arrive, and when; :class:`SyncCluster` is the same in a thread,
for tests without an event loop;
:class:`ProcessCluster` runs them as real processes.
"""

from cometmq.clock import VirtualClock
from cometmq.idle import NeverIdleError, settle
from cometmq.testing.cluster import Cluster
from cometmq.testing.inbox import ExpectationError, Inbox
from cometmq.testing.ports import free_port
from cometmq.testing.processes import ProcessCluster, ServerProcess
from cometmq.testing.proxy import Direction, Link
from cometmq.testing.sync import SyncCluster, SyncInbox
from cometmq.testing.waiting import wait_until

__all__ = [
    "Cluster",
    "Direction",
    "ExpectationError",
    "Inbox",
    "Link",
    "NeverIdleError",
    "ProcessCluster",
    "ServerProcess",
    "SyncCluster",
    "SyncInbox",
    "VirtualClock",
    "free_port",
    "settle",
    "wait_until",
]
