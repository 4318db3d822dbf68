"""The broker's state for administrators: runtime information (28), one statistic (315), deletions now (306, 329).

Every key that tools parse is always there (``AdminBrokerProcessor.prepareRuntimeInfo``). Keys about
thread pools and locks are 0, since requests wait for neither here.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from cometmq.broker.live_config import LiveConfig
from cometmq.broker.schedule import ScheduleMessageService
from cometmq.broker.stats import BrokerStats
from cometmq.remoting.bodies import KVTable, encode_body
from cometmq.remoting.codes import CURRENT_VERSION, CURRENT_VERSION_NAME, RequestCode, ResponseCode
from cometmq.remoting.headers import NoHeader, ViewBrokerStatsDataRequestHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.disk import Disk
from cometmq.store.message_store import MessageStore

_ALWAYS_ZERO: Final = (
    *(
        f"{pool}ThreadPoolQueue{what}"
        for pool in ("send", "pull", "query")
        for what in ("Size", "Capacity", "HeadWaitTimeMills")
    ),
    "EndTransactionQueueSize",
    "pageCacheLockTimeMills",
    "dispatchMaxBuffer",
    "EndTransactionThreadPoolQueueCapacity",
)
_NO_STORE_POOL: Final = 2**31 - 1
"""remainTransientStoreBufferNumbs of a broker without a transient store pool."""


class TellsOfItself(Protocol):
    """A part of the broker that the runtime information has keys of."""

    def runtime_info(self) -> dict[str, str]:
        """The keys and their values now."""


class RuntimeAdmin:
    """Answers administrators about the running broker."""

    def __init__(
        self,
        live: LiveConfig,
        store: MessageStore,
        stats: BrokerStats,
        schedule: ScheduleMessageService,
        of_role: TellsOfItself,
    ) -> None:
        self._live = live
        self._store = store
        self._stats = stats
        self._schedule = schedule
        self._of_role = of_role

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes about the running broker."""
        code = RequestCode
        processors.register(code.GET_BROKER_RUNTIME_INFO, NoHeader, self.runtime_info)
        processors.register(code.VIEW_BROKER_STATS_DATA, ViewBrokerStatsDataRequestHeader, self.view_stats)
        processors.register(code.CLEAN_EXPIRED_CONSUMEQUEUE, NoHeader, self.clean)
        processors.register(code.DELETE_EXPIRED_COMMITLOG, NoHeader, self.clean)

    def runtime_info(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """GET_BROKER_RUNTIME_INFO (28)."""
        table = self._stats.runtime_info()
        table.update(self._of_store())
        for level, (offset, end) in self._schedule.offsets().items():
            table[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
        table.update(self._of_role.runtime_info())
        table.update(dict.fromkeys(_ALWAYS_ZERO, "0"))
        return Response(body=encode_body(KVTable(table=dict(sorted(table.items())))))

    def _of_store(self) -> dict[str, str]:
        store = self._store
        config = self._live.current
        log = _existing(config.commit_log)
        usage = shutil.disk_usage(log)
        disk = Disk()
        log_ratio = f"{disk.used_ratio(log):.2f}"
        return {
            "brokerVersion": str(CURRENT_VERSION),
            "brokerVersionDesc": CURRENT_VERSION_NAME,
            "commitLogDirCapacity": f"Total : {_readable(usage.total)}, Free : {_readable(usage.free)}.",
            "commitLogDiskRatio": log_ratio,
            f"commitLogDiskRatio_{config.commit_log}": log_ratio,
            "consumeQueueDiskRatio": f"{disk.used_ratio(_existing(config.root)):.2f}",
            "commitLogMinOffset": str(store.min_physical_offset),
            "commitLogMaxOffset": str(store.max_physical_offset),
            "remainHowManyDataToFlush": _readable(max(store.max_physical_offset - store.flushed_position, 0)),
            "remainTransientStoreBufferNumbs": str(_NO_STORE_POOL),
            "dispatchBehindBytes": str(store.dispatch_behind_bytes),
            "earliestMessageTimeStamp": str(store.earliest_store_time()),
            "startAcceptSendRequestTimeStamp": str(config.start_accept_send_request_time_stamp),
        }

    def view_stats(
        self, _connection: ServerConnection, request: Request[ViewBrokerStatsDataRequestHeader], _body: bytes
    ) -> Response:
        """VIEW_BROKER_STATS_DATA (315)."""
        name, key = request.header.stats_name, request.header.stats_key
        data = self._stats.view(name, key)
        if data is None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"The stats <{name}> <{key}> not exist")
        return Response(body=encode_body(data))

    def clean(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """CLEAN_EXPIRED_CONSUMEQUEUE (306), DELETE_EXPIRED_COMMITLOG (329): delete old files now, at any hour."""
        self._store.delete_expired_files()
        return Response()


def _existing(path: Path) -> Path:
    """The path itself, or the nearest directory above it that exists."""
    return next((place for place in _upwards(path) if place.exists()), Path("/"))


def _upwards(path: Path) -> Iterator[Path]:
    yield path
    yield from path.absolute().parents


def _readable(size: int) -> str:
    """``0 B``, ``6.4 KiB``, ``74.4 GiB`` (``UtilAll.humanReadableByteCount``)."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in "KMGTPE":
        value /= 1024
        if value < 1024 or unit == "E":
            return f"{value:.1f} {unit}iB"
    raise AssertionError(size)
