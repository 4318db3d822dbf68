"""How far the slaves of this broker are: GET_BROKER_HA_STATUS (907), for tools of 5.x and ours."""

from __future__ import annotations

from cometmq.broker.live_config import LiveConfig
from cometmq.broker.replication.ha_connection import HAConnection
from cometmq.broker.replication.ha_service import HAService
from cometmq.remoting.bodies import HAConnectionRuntimeInfo, HARuntimeInfo, encode_body
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection


class HaStatusAdmin:
    """Answers administrators about slaves (``DefaultHAService.getRuntimeInfo``)."""

    def __init__(self, live: LiveConfig, ha: HAService) -> None:
        self._live = live
        self._ha = ha

    def register(self, processors: ProcessorTable) -> None:
        """Answer the code of this module."""
        processors.register(RequestCode.GET_BROKER_HA_STATUS, NoHeader, self.status)

    def status(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """GET_BROKER_HA_STATUS (907): every slave that has reported."""
        slaves = [self._of(slave) for slave in self._ha.slaves if slave.has_begun]
        return Response(
            body=encode_body(
                HARuntimeInfo(
                    master=True,
                    master_commit_log_max_offset=self._ha.store.max_physical_offset,
                    in_sync_slave_nums=sum(slave.in_sync for slave in slaves),
                    ha_connection_info=slaves,
                )
            )
        )

    def _of(self, slave: HAConnection) -> HAConnectionRuntimeInfo:
        return HAConnectionRuntimeInfo(
            addr=slave.address,
            slave_ack_offset=slave.ack_offset,
            diff=slave.behind,
            in_sync=slave.behind < self._live.current.ha_slave_fallbehind_max,
            transferred_byte_in_second=slave.bytes_per_s,
            transfer_from_where=slave.next_offset,
        )
