"""The test kit: CometMQ inside a test, or beside it as processes that may be killed.

:class:`Cluster` runs a nameserver and brokers on the test's own event loop, with a clock that the test
may move; :class:`ProcessCluster` runs them as real processes, for tests of crashes.
"""

from cometmq.testing.cluster import Cluster
from cometmq.testing.ports import free_port
from cometmq.testing.processes import ProcessCluster, ServerProcess

__all__ = ["Cluster", "ProcessCluster", "ServerProcess", "free_port"]
