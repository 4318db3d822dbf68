"""The administration client for topics, groups, offsets, messages and clusters (``DefaultMQAdminExt``)."""

from __future__ import annotations

from cometmq.client.admin.failover.requests import FailoverAdmin
from cometmq.client.admin.groups import ConsumeProgress, QueueProgress
from cometmq.client.admin.lite.requests import LiteAdmin
from cometmq.client.admin.messages import END_OF_TIME_MS, MessageAdmin
from cometmq.client.admin.topics import TIMEOUT_S

__all__ = ["END_OF_TIME_MS", "TIMEOUT_S", "Admin", "ConsumeProgress", "QueueProgress"]


class Admin(LiteAdmin, MessageAdmin, FailoverAdmin):
    """Administers a cluster. Every call can raise ``BrokerError`` (request rejected) and ``RemotingError`` (no
    response).

    :param namesrv: ``host:port;host:port``; by default ``$NAMESRV_ADDR`` or, if it is not set, ``127.0.0.1:9876``.
    :param timeout_s: seconds for each request.
    :param security: credentials and TLS settings of its own instance; by default from the environment.
    """
