"""Lines of the log about clients that come and go: the first of a period by name, the others counted."""

from __future__ import annotations

import logging
from typing import Final

from cometmq.broker.tables.clients import ClientChannel, ClientRegistry
from cometmq.message.names import SYSTEM_GROUPS

_log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 10.0
NAMED_IN_A_PERIOD: Final = 10
"""More clients are counted: a broker's start or a network's end moves thousands at once."""
_MOST_CHARS: Final = 150


class ClientLines:
    """Tells members of groups that come and go; :meth:`tell` is called every :data:`PERIOD_SECONDS`.

    Groups of the system are left out: each client of Apache's is a producer of ``CLIENT_INNER_PRODUCER``, too.
    """

    def __init__(self, clients: ClientRegistry) -> None:
        self._clients = clients
        self._named = self._came = self._went = 0
        clients.producers.on_move.append(lambda group, channel, here: self._moved("producer", group, channel, here))
        clients.consumers.on_move.append(lambda group, channel, here: self._moved("consumer", group, channel, here))

    def _moved(self, what: str, group: str, channel: ClientChannel, here: bool) -> None:
        if group in SYSTEM_GROUPS or not _log.isEnabledFor(logging.INFO):
            return
        if self._named >= NAMED_IN_A_PERIOD:
            self._came += here
            self._went += not here
            return
        self._named += 1
        who = f"{what} {channel.client_id[:_MOST_CHARS]} of group {group}"
        if here:
            _log.info("%s comes from %s (%s)", who, channel.connection.remote_address, channel.language)
        else:
            _log.info("%s is gone", who)

    def tell(self) -> None:
        """Tell how many more came and went, and begin the next period."""
        if self._came or self._went:
            _log.info(
                "%d more clients came and %d went; members of groups now: %d producers, %d consumers",
                *(self._came, self._went, self._clients.producers.members, self._clients.consumers.members),
            )
        self._named = self._came = self._went = 0
