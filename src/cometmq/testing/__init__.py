"""The test kit: runs CometMQ inside a test, or in separate processes that the test can kill.

* :class:`Cluster` runs a nameserver and brokers on the test's own event loop, with a clock that the test may move
  (:class:`VirtualClock`). It kills a broker as SIGKILL does, pauses it, disturbs the :class:`Link` to it, and checks
  with :meth:`Cluster.inbox` which messages arrive, and when. ``Cluster(replicas=3)`` has brokers of three members each,
  which elect their master (:class:`ReplicaSet`).
* :class:`LiteTopics` creates a parent topic with a group, sends to lite topics, receives from them, and lets them
  expire.
* :class:`SyncCluster` is the same cluster in a thread, for tests that have no event loop.
* :class:`ProcessCluster` runs nameserver and brokers as real processes.
"""

from cometmq.errors import TESTING, require

require("the test kit", TESTING, "numpy", "h11", "google.protobuf")

from cometmq.testing.clock import VirtualClock, wait_until
from cometmq.testing.cluster import Cluster
from cometmq.testing.collection import ExpectationError
from cometmq.testing.idle import NeverIdleError, settle
from cometmq.testing.inbox import Inbox
from cometmq.testing.link import Direction, Link
from cometmq.testing.lite_topics import LiteInbox, LiteTopics
from cometmq.testing.ports import free_port
from cometmq.testing.processes import ProcessCluster, ServerProcess
from cometmq.testing.replica_set import ReplicaSet
from cometmq.testing.stall import StalledClockError
from cometmq.testing.sync import SyncCluster, SyncInbox

__all__ = [
    "Cluster",
    "Direction",
    "ExpectationError",
    "Inbox",
    "Link",
    "LiteInbox",
    "LiteTopics",
    "NeverIdleError",
    "ProcessCluster",
    "ReplicaSet",
    "ServerProcess",
    "StalledClockError",
    "SyncCluster",
    "SyncInbox",
    "VirtualClock",
    "free_port",
    "settle",
    "wait_until",
]
