"""The label ``cometmq.dev/role`` of the pods of a set: ``master`` or ``slave``, for Services that select the master.

A member labels the pod that has its name. A new master also labels the other members' pods as slaves, because its
predecessor may be cut off from Kubernetes' API. No decision depends on labels: a label that is wrong sends clients to a
member that refuses them, and all labels are written again after some time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from cometmq.broker.failover.engines.http_client import Call, Endpoint, HttpConnection
from cometmq.broker.failover.engines.interface import EngineError, Presence
from cometmq.broker.limits import ENGINE_TRY_SECONDS
from cometmq.clock import Clock
from cometmq.remoting.tls.contexts import FreshContext

_log = logging.getLogger(__name__)

ROLE_LABEL: Final = "cometmq.dev/role"
MASTER: Final = "master"
SLAVE: Final = "slave"
_AGAIN_SECONDS: Final = 30.0
"""Time after which a label is written again, whether it was written before or not."""

MakeCall = Callable[[str, str, bytes, str], Awaitable[Call]]


class PodLabels:
    """Writes labels in a task of its own, so that a slow answer does not delay the renewal of a lease.

    :param call: makes a request with the account's token, from method, target, body and content type.
    """

    def __init__(
        self, endpoint: Endpoint, tls: FreshContext | None, namespace: str, call: MakeCall, clock: Clock
    ) -> None:
        self._connection = HttpConnection(endpoint, tls, clock)
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._call = call
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._serves: int | None = None
        self._shown_at = 0.0
        self._trouble = ""

    def show(self, presence: Presence, replicas: frozenset[str]) -> None:
        """Label the member's pod, if its role has changed, or after some time.

        :param replicas: the names of all replicas of the set.
        """
        now = self._clock.monotonic()
        is_new = presence.serves != self._serves
        if (self._task is not None and not self._task.done()) or not (is_new or now - self._shown_at >= _AGAIN_SECONDS):
            return
        self._serves, self._shown_at = presence.serves, now
        me = presence.member.name
        roles = {me: MASTER if presence.serves else SLAVE}
        if presence.serves and is_new:
            roles |= dict.fromkeys(replicas - {me}, SLAVE)
        self._task = asyncio.create_task(self._write(roles))

    async def _write(self, roles: dict[str, str]) -> None:
        trouble = ""
        for pod, role in roles.items():
            body = msgspec.json.encode({"metadata": {"labels": {ROLE_LABEL: role}}})
            try:
                call = await self._call("PATCH", f"{self._path}/{pod}", body, "application/merge-patch+json")
                status, _ = await self._connection.request(call, ENGINE_TRY_SECONDS)
                problem = "" if status == 200 else f"HTTP status {status}"
            except EngineError as error:
                problem = str(error)
            if problem:
                trouble = trouble or f"{pod}: {problem}"
        if trouble and trouble != self._trouble:
            _log.warning(
                "cannot label a pod with %s, so a Service may not find the master: %s. Set failoverMember to the pod's "
                "name, and give the service account the verb patch for pods in this namespace",
                ROLE_LABEL,
                trouble,
            )
        self._trouble = trouble

    async def close(self) -> None:
        """End the task and close the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._connection.abort()
