"""The hook of connections of type ``rocketmq``: clients for tasks, and the test of a connection."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

try:
    from airflow.sdk import BaseHook
except ImportError:  # before Airflow 3.1
    from airflow.hooks.base import BaseHook

from cometmq.client import RouteNotFoundError
from cometmq.client.sync import SyncAdmin, SyncProducer
from cometmq.errors import CometMQError
from cometmq.integrations.airflow.connection import TYPE, settings_of
from cometmq.message.names import AUTO_CREATE_TOPIC


class RocketMQHook(BaseHook):
    """Makes clients with the settings of a connection.

    :param conn_id: the connection's ID.
    """

    conn_name_attr = "conn_id"
    default_conn_name = "rocketmq_default"
    conn_type = TYPE
    hook_name = "CometMQ and Apache RocketMQ"

    def __init__(self, conn_id: str = default_conn_name, **options: Any) -> None:
        super().__init__(**options)
        self.conn_id = conn_id

    def get_conn(self) -> SyncProducer:
        """Return a producer, which starts in a ``with`` statement.

        :raises AirflowConnectionError: a field of the connection is not allowed.
        """
        namesrv, security = settings_of(self.get_connection(self.conn_id))
        return SyncProducer("airflow", namesrv, security=security)

    def test_connection(self) -> tuple[bool, str]:
        """Return whether a nameserver answers with these settings, and a message."""
        try:
            namesrv, security = settings_of(self.get_connection(self.conn_id))
            with SyncAdmin(namesrv, security=security) as admin, suppress(RouteNotFoundError):
                admin.topic_route(AUTO_CREATE_TOPIC)  # an account needs no right for this
        except CometMQError as error:
            return False, str(error)
        return True, "A nameserver answers. Brokers check the account when it is used."
