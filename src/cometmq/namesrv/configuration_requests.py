"""What tools set and read on a nameserver: the KV configuration and its own options (``DefaultRequestProcessor``)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from cometmq.namesrv.kv import KvConfig, KvError
from cometmq.namesrv.kv_writer import KvWriter
from cometmq.namesrv.settings import PathChangeError, Settings
from cometmq.options import ConfigError, no_effect
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    NoHeader,
    PutKVConfigRequestHeader,
)
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)


class ConfigurationRequests:
    """The handlers about configuration."""

    def __init__(self, kv: KvConfig, settings: Settings) -> None:
        self.kv = kv
        self._writer: Final = KvWriter(kv)
        self.settings = settings

    def register(self, processors: ProcessorTable) -> None:
        """Enter every handler into ``processors``."""
        code = RequestCode
        add = processors.register
        add(code.PUT_KV_CONFIG, PutKVConfigRequestHeader, self.put_kv)
        add(code.GET_KV_CONFIG, GetKVConfigRequestHeader, self.get_kv)
        add(code.DELETE_KV_CONFIG, DeleteKVConfigRequestHeader, self.delete_kv)
        add(code.GET_KVLIST_BY_NAMESPACE, GetKVListByNamespaceRequestHeader, self.kv_namespace)
        add(code.UPDATE_NAMESRV_CONFIG, NoHeader, self.update_config)
        add(code.GET_NAMESRV_CONFIG, NoHeader, self.get_config)

    async def stop(self) -> None:
        """Write what is still to be written."""
        await self._writer.stop()

    # --- KV configuration ---------------------------------------------------------------------
    def put_kv(
        self, conn: ServerConnection, request: Request[PutKVConfigRequestHeader], body: bytes
    ) -> Response | None:
        """PUT_KV_CONFIG (100); answered once it is on disk."""
        header = request.header
        return self._change(conn, request, lambda: self.kv.put(header.namespace, header.key, header.value))

    def _change(self, conn: ServerConnection, request: Request[Any], change: Callable[[], None]) -> Response | None:
        if self._writer.is_full:
            return Response(ResponseCode.SYSTEM_BUSY, remark="too many changes wait to be written, try again")
        try:
            change()
        except KvError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=str(error))
        if self.kv.is_written:
            return Response()
        self._writer.write(
            lambda error: conn.respond(
                request, Response() if error is None else Response(ResponseCode.SYSTEM_ERROR, remark=str(error))
            )
        )
        return None

    def get_kv(self, conn: ServerConnection, request: Request[GetKVConfigRequestHeader], body: bytes) -> Response:
        """GET_KV_CONFIG (101)."""
        header = request.header
        value = self.kv.get(header.namespace, header.key)
        if value is None:
            return Response(
                ResponseCode.QUERY_NOT_FOUND,
                remark=f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return Response(header=GetKVConfigResponseHeader(value=value))

    def delete_kv(
        self, conn: ServerConnection, request: Request[DeleteKVConfigRequestHeader], body: bytes
    ) -> Response | None:
        """DELETE_KV_CONFIG (102); answered once it is on disk."""
        header = request.header
        return self._change(conn, request, lambda: self.kv.delete(header.namespace, header.key))

    def kv_namespace(
        self, conn: ServerConnection, request: Request[GetKVListByNamespaceRequestHeader], body: bytes
    ) -> Response:
        """GET_KVLIST_BY_NAMESPACE (219)."""
        table = self.kv.namespace(request.header.namespace)
        if table is None:
            return Response(
                ResponseCode.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {request.header.namespace}"
            )
        return Response(body=msgspec.json.encode({"table": table}))

    # --- configuration ------------------------------------------------------------------------
    def update_config(self, conn: ServerConnection, request: Request[NoHeader], body: bytes) -> Response:
        """UPDATE_NAMESRV_CONFIG (318)."""
        try:
            without_effect = self.settings.update(body.decode("utf-8"))
        except UnicodeDecodeError:
            return Response(ResponseCode.SYSTEM_ERROR, remark="the body is not UTF-8 text")
        except PathChangeError as error:
            return Response(ResponseCode.NO_PERMISSION, remark=str(error))
        except ConfigError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=str(error))
        if not without_effect:
            return Response()
        _log.warning("%s sets %s", conn.remote_address, no_effect(without_effect))
        return Response(remark=no_effect(without_effect))

    def get_config(self, conn: ServerConnection, request: Request[NoHeader], body: bytes) -> Response:
        """GET_NAMESRV_CONFIG (319)."""
        return Response(body=self.settings.text().encode())
