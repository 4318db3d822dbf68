"""The broker's configuration for administrators: read (26), change at run time (25).

Only keys that :mod:`cometmq.broker.config` marks as changeable at run time can be changed, within their
ranges; all of a request or nothing of it. Apache's other keys are kept and shown, and the answer says that they
have no effect. Secrets are never in an answer. (``AdminBrokerProcessor``.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cometmq.broker.config import keys_without_effect
from cometmq.broker.live_config import LiveConfig
from cometmq.clock import Clock
from cometmq.options import ConfigError, changed, format_properties, no_effect
from cometmq.properties_file import update_file
from cometmq.remoting.bodies import DataVersion, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import GetBrokerConfigResponseHeader, NoHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)

FIXED: Final = {"filterServerNums": "0", "useTLS": "false"}
"""Apache's keys without effect that tools expect in the answer (exportConfigs fails without them), set or not."""


class ConfigAdmin:
    """Answers administrators about the configuration.

    :param permission_changed: called after ``brokerPermission`` changed, which every route shows.
    """

    def __init__(self, live: LiveConfig, permission_changed: Callable[[], None], clock: Clock) -> None:
        self._live = live
        self._permission_changed = permission_changed
        self._clock = clock
        self._without_effect = keys_without_effect()
        self._version = DataVersion(counter=0, timestamp=clock.now_ms())

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes about the configuration."""
        processors.register(RequestCode.GET_BROKER_CONFIG, NoHeader, self.read)
        processors.register(RequestCode.UPDATE_BROKER_CONFIG, NoHeader, self.update)

    def read(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """GET_BROKER_CONFIG (26): properties text."""
        version = encode_body(self._version).decode()
        config = self._live.current
        fixed = "".join(f"{key}={value}\n" for key, value in FIXED.items() if key not in config.kept)
        text = format_properties(config, self._without_effect) + fixed
        return Response(header=GetBrokerConfigResponseHeader(version=version), body=text.encode())

    def update(self, connection: ServerConnection, _request: Request[NoHeader], body: bytes) -> Response:
        """UPDATE_BROKER_CONFIG (25): properties text; written back to the configuration file, then in force."""
        before = self._live.current
        try:
            change = changed(before, body.decode("utf-8"), without_effect=self._without_effect)
            if change.texts and before.config_store_path:
                update_file(Path(before.config_store_path), change.texts)
        except UnicodeDecodeError:
            return Response(ResponseCode.SYSTEM_ERROR, remark="the body is not UTF-8 text")
        except ConfigError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=str(error))
        except OSError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"the change could not be written: {error}")
        if change.texts:
            _log.info("%s changes the configuration: %s", connection.remote_address, ", ".join(sorted(change.texts)))
            self._version = DataVersion(counter=self._version.counter + 1, timestamp=self._clock.now_ms())
            self._live.replace(change.config)
            if change.config.broker_permission != before.broker_permission:
                self._permission_changed()
        if not change.without_effect:
            return Response()
        _log.warning("%s sets %s", connection.remote_address, no_effect(change.without_effect))
        return Response(remark=no_effect(change.without_effect))
