"""The bindings of queues to exchanges, which all processes share through the nameservers' KV configuration.

An exchange is a namespace, and each binding is a key of its own, so that two processes never overwrite each other's
bindings. A binding is written to every nameserver that answers; readers join what the nameservers know. Kombu declares
bindings again at each start, so that a nameserver that was away gets them later.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from cometmq.client.errors import AccessDeniedError, BrokerError, RemotingError
from cometmq.client.instance import ClientInstance
from cometmq.integrations.kombu.names import tag_of
from cometmq.remoting.admin_headers import (
    DeleteKVConfigRequestHeader,
    GetKVListByNamespaceRequestHeader,
    PutKVConfigRequestHeader,
)
from cometmq.remoting.bodies import KVTable, decode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import Header

log = logging.getLogger(__name__)

FRESH_S: Final = 5.0
"""Time in seconds for which a process uses bindings before it asks for them again."""

Binding = tuple[str, str]
"""A queue and the routing key with which it is bound."""


class Bindings:
    """The shared bindings, by the topic of their exchange."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._found: dict[str, tuple[float, frozenset[Binding]]] = {}
        self._own: dict[str, set[Binding]] = {}
        self._denied = False

    async def of(self, exchange: str) -> frozenset[Binding]:
        """Return the bindings of an exchange.

        :raises RemotingError: no nameserver answers, and the bindings are not known from before.
        """
        now = self._instance.clock.monotonic()
        since, found = self._found.get(exchange, (0.0, None))
        if found is None or now - since > FRESH_S:
            try:
                found = await self._read(exchange)
            except RemotingError:
                if found is None:
                    raise
            self._found[exchange] = now, found
        return found | self._own.get(exchange, set())

    async def add(self, exchange: str, queue: str, key: str) -> None:
        """Bind a queue.

        :raises RemotingError: no nameserver answers.
        """
        own = self._own.setdefault(exchange, set())
        if (queue, key) not in own:
            header = PutKVConfigRequestHeader(exchange, _key(queue, key), json.dumps([queue, key]))
            await self._everywhere(RequestCode.PUT_KV_CONFIG, header, f"binding queue {queue}")
            own.add((queue, key))

    async def remove(self, exchange: str, queue: str, key: str | None = None) -> None:
        """Remove the binding of a queue with a key, or all its bindings.

        :raises RemotingError: no nameserver answers.
        """
        for bound, its_key in await self.of(exchange):
            if bound == queue and key in (None, its_key):
                header = DeleteKVConfigRequestHeader(exchange, _key(queue, its_key))
                await self._everywhere(RequestCode.DELETE_KV_CONFIG, header, f"unbinding queue {queue}")
                self._own.get(exchange, set()).discard((queue, its_key))
        self._found.pop(exchange, None)

    async def _read(self, exchange: str) -> frozenset[Binding]:
        header = GetKVListByNamespaceRequestHeader(exchange)
        found: set[Binding] = set()
        for body in await self._everywhere(RequestCode.GET_KVLIST_BY_NAMESPACE, header, "reading bindings"):
            for value in (decode_body(KVTable, body).table if body else {}).values():
                try:
                    queue, key = json.loads(value)
                except (ValueError, TypeError, RecursionError):
                    log.warning(
                        "the nameserver's KV namespace %s has a value that is no binding: %.100s", exchange, value
                    )
                else:
                    found.add((str(queue), str(key)))
        return frozenset(found)

    async def _everywhere(self, code: RequestCode, header: Header, doing: str) -> list[bytes]:
        """Send a request to all nameservers; return the bodies of those that answer.

        Without the right to read or change the KV configuration, a process knows only its own bindings.
        """
        instance = self._instance
        ask: Callable[[str], Coroutine[Any, Any, Any]] = lambda address: instance.call(  # noqa: E731
            address, code, header, doing=doing
        )
        answers = await asyncio.gather(*map(ask, instance.routes.namesrv), return_exceptions=True)
        bodies = [answer.body for answer in answers if not isinstance(answer, BaseException)]
        for error in answers:
            if isinstance(error, AccessDeniedError):
                if not self._denied:
                    log.warning("the bindings of other processes are not known: %s", error)
                self._denied = True
                bodies.append(b"")
            elif isinstance(error, BrokerError) and error.code == ResponseCode.QUERY_NOT_FOUND:
                bodies.append(b"")
        failures = [error for error in answers if isinstance(error, BaseException)]
        if not bodies and failures:
            raise failures[0]
        return bodies


def _key(queue: str, key: str) -> str:
    return tag_of(f"{queue}\0{key}")
