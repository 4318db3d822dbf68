"""Administration of the broker: runtime information, statistics, configuration, and deletion of old files."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from cometmq import __version__
from cometmq.apache_keys import BROKER, apache_keys
from cometmq.broker.config import SLAVE
from cometmq.broker.context import BrokerContext
from cometmq.broker.delay.schedule_message import ScheduleMessageService
from cometmq.broker.tables.set_keys import SetKeys
from cometmq.durable import replace_file
from cometmq.errors import reason_of
from cometmq.options import ConfigError, changed, format_properties, no_effect
from cometmq.properties_file import update_file
from cometmq.remoting.admin_headers import GetBrokerConfigResponseHeader, ViewBrokerStatsDataRequestHeader
from cometmq.remoting.bodies import DataVersion, KVTable, encode_body
from cometmq.remoting.codes import CURRENT_VERSION, CURRENT_VERSION_NAME, RequestCode, ResponseCode
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.permissions import Action, needs_cluster
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.disk import Disk

_log = logging.getLogger(__name__)

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
"""Runtime information that is always zero, because CometMQ has no such thread pools and locks
(``prepareRuntimeInfo``).
"""
_NO_STORE_POOL: Final = 2**31 - 1
"""Value of ``remainTransientStoreBufferNumbs``, since CometMQ has no transient store pool."""


class ReportsRuntimeInfo(Protocol):
    """An object of the broker that adds keys to the runtime information."""

    def runtime_info(self) -> dict[str, str]:
        """Return the keys that this object adds to the runtime information, with their current values."""


class BrokerAdmin:
    """Handles requests about the running broker and its configuration (``AdminBrokerProcessor``)."""

    def __init__(
        self,
        broker: BrokerContext,
        schedule: ScheduleMessageService,
        reporters: Sequence[ReportsRuntimeInfo],
        set_keys: SetKeys | None = None,
    ) -> None:
        """Create the handlers.

        :param reporters: the objects that add keys to the runtime information.
        :param set_keys: the keys that were set at run time in the set of which this broker is a member.
        """
        self._set_keys = set_keys
        self._broker = broker
        self._schedule = schedule
        self._reporters = reporters
        self._apache = apache_keys(BROKER)
        self._version = DataVersion(counter=0, timestamp=broker.clock.now_ms())

    @answers(RequestCode.GET_BROKER_RUNTIME_INFO, permission=needs_cluster(Action.GET))
    def runtime_info(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """Return the runtime information, including every key that tools parse."""
        table = self._broker.stats.runtime_info()
        table.update(self._of_store())
        for level, (offset, end) in self._schedule.offsets().items():
            table[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
        for part in self._reporters:
            table.update(part.runtime_info())
        table.update(dict.fromkeys(_ALWAYS_ZERO, "0"))
        return Response(body=encode_body(KVTable(table=dict(sorted(table.items())))))

    def _of_store(self) -> dict[str, str]:
        store = self._broker.store
        config = self._broker.config
        log = _existing(config.commit_log)
        usage = shutil.disk_usage(log)
        disk = Disk()
        log_ratio = f"{disk.used_ratio(log):.2f}"
        return {
            "brokerVersion": str(CURRENT_VERSION),
            "brokerVersionDesc": CURRENT_VERSION_NAME,
            "cometmqVersion": __version__,
            "currentTimestamp": str(self._broker.clock.now_ms()),
            "clockBehindStoreMs": str(store.clock_behind_ms),
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
            "missingQueueEntries": str(store.missing_entries()),
            "startAcceptSendRequestTimeStamp": str(config.start_accept_send_request_time_stamp),
        }

    @answers(RequestCode.VIEW_BROKER_STATS_DATA, permission=needs_cluster(Action.GET))
    def view_stats(
        self, _connection: ServerConnection, request: Request[ViewBrokerStatsDataRequestHeader], _body: bytes
    ) -> Response:
        """Return a statistic over the last minute, hour and day."""
        name, key = request.header.stats_name, request.header.stats_key
        data = self._broker.stats.view(name, key)
        if data is None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"The stats <{name}> <{key}> not exist")
        return Response(body=encode_body(data))

    @answers(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, permission=needs_cluster(Action.UPDATE))
    @answers(RequestCode.DELETE_EXPIRED_COMMITLOG, permission=needs_cluster(Action.UPDATE))
    def clean(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """Delete old files now, regardless of the configured hour."""
        self._broker.store.delete_expired_files()
        return Response()

    # --- configuration ------------------------------------------------------------------------
    @answers(RequestCode.GET_BROKER_CONFIG, permission=needs_cluster(Action.GET))
    def read_config(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """Return the configuration as properties text, without secrets."""
        version = encode_body(self._version).decode()
        text = format_properties(self._broker.config, self._apache)
        return Response(header=GetBrokerConfigResponseHeader(version=version), body=text.encode())

    @answers(
        RequestCode.UPDATE_BROKER_CONFIG, limits=("MAX_CONFIG_UPDATE_BYTES",), permission=needs_cluster(Action.UPDATE)
    )
    async def update_config(self, connection: ServerConnection, _request: Request[NoHeader], body: bytes) -> Response:
        """Change the configuration, first in its file, then in the broker.

        The request body is properties text. Only keys that :mod:`cometmq.broker.config` marks as changeable at run time
        can change, and only within their ranges. A request changes all its keys or none. Apache's other keys are stored
        and shown, but the response says that they have no effect. In a set, the master's keys go over to the other
        members, except those that belong to one machine.
        """
        before = self._broker.config
        try:
            change = changed(before, body.decode("utf-8"), apache=self._apache)
            goes_over = self._write(change.texts)
        except UnicodeDecodeError:
            return Response(ResponseCode.SYSTEM_ERROR, remark="the body is not UTF-8 text")
        except ConfigError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=str(error))
        except OSError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"cannot write the change: {error}")
        if change.texts:
            _log.info(
                "%s is changing the configuration: %s", connection.remote_address, ", ".join(sorted(change.texts))
            )
            self._version = DataVersion(counter=self._version.counter + 1, timestamp=self._broker.clock.now_ms())
            if change.config.broker_permission != before.broker_permission:
                self._broker.topics.new_version()  # routes contain the permission
            self._broker.live.replace(change.config)
        lacks = await self._broker.tables.others_have() if goes_over else ""
        if lacks:
            return Response(ResponseCode.SYSTEM_ERROR, remark=lacks)
        if not change.without_effect:
            return Response()
        _log.warning("%s sets %s", connection.remote_address, no_effect(change.without_effect))
        return Response(remark=no_effect(change.without_effect))

    def _write(self, texts: Mapping[str, str]) -> bool:
        """Write changed keys to the configuration file or, if they go over, to the keys of the set.

        Return whether some go over.

        :raises ConfigError: they are keys of the set, and this broker is not its master.
        :raises OSError: a file cannot be written.
        """
        config, keys = self._broker.config, self._set_keys
        of_set = frozenset() if keys is None else keys.of_set(texts)
        if of_set and config.broker_role == SLAVE:
            raise ConfigError(
                f"{', '.join(sorted(of_set))}: this broker is a slave of its set, and copies the master's keys",
                next_step="change them at the master, which cometmq failover status names",
            )
        own = {key: text for key, text in texts.items() if key not in of_set}
        path = Path(config.config_store_path) if own and config.config_store_path else None
        before = path.read_bytes() if path is not None and path.exists() else None
        if path is not None:
            update_file(path, own)
        if keys is not None and of_set:
            wanted = keys.texts | {key: texts[key] for key in of_set}
            try:
                keys.save(wanted)
            except OSError:
                if path is not None:
                    _put_back(path, before)
                raise
            keys.use(wanted)
        return bool(of_set)


def _put_back(path: Path, before: bytes | None) -> None:
    """Restore a file, or the absence of one, because the rest of a change could not be written."""
    try:
        if before is None:
            path.unlink()
        else:
            replace_file(path, before)
    except OSError as error:
        _log.error("%s cannot be restored: %s; it has keys of a change that was refused", path, reason_of(error))


def _existing(path: Path) -> Path:
    """Return a path or its nearest existing parent directory."""
    return next((place for place in _upwards(path) if place.exists()), Path("/"))


def _upwards(path: Path) -> Iterator[Path]:
    yield path
    yield from path.absolute().parents


def _readable(size: int) -> str:
    """Format a size, for example ``0 B``, ``6.4 KiB`` or ``74.4 GiB`` (``UtilAll.humanReadableByteCount``)."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in "KMGTPE":
        value /= 1024
        if value < 1024 or unit == "E":
            return f"{value:.1f} {unit}iB"
    raise AssertionError(size)
