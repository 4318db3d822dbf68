"""Log lines for clients that join and leave groups.

In each period, the first clients are logged by name, and the remaining ones are only counted.
"""

from __future__ import annotations

import logging
from typing import Final

from cometmq.broker.tables.clients import ClientRegistry
from cometmq.broker.tables.consumer_group import ClientChannel
from cometmq.message.names import SYSTEM_GROUPS

_log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 10.0
NAMED_IN_A_PERIOD: Final = 10
"""Maximum number of clients logged by name in a period; further clients are only counted."""
_MOST_CHARS: Final = 150


class ClientLines:
    """Logs members that join and leave groups; :meth:`log_counts` must be called every :data:`PERIOD_SECONDS`.

    System groups are skipped, since each Apache client is also a producer in ``CLIENT_INNER_PRODUCER``.
    """

    def __init__(self, clients: ClientRegistry) -> None:
        self._clients = clients
        self._named = self._joined = self._left = 0
        clients.producers.on_move.append(lambda group, channel, here: self._log_move("producer", group, channel, here))
        clients.consumers.on_move.append(lambda group, channel, here: self._log_move("consumer", group, channel, here))

    def _log_move(self, what: str, group: str, channel: ClientChannel, here: bool) -> None:
        if group in SYSTEM_GROUPS:
            return
        if self._named >= NAMED_IN_A_PERIOD:
            self._joined += here
            self._left += not here
            return
        self._named += 1
        who = f"{what} {channel.client_id[:_MOST_CHARS]} of group {group}"
        if here:
            _log.info("%s joined from %s (%s)", who, channel.connection.remote_address, channel.language)
        else:
            _log.info("%s left", who)

    def log_counts(self) -> None:
        """Log how many clients joined and left without a line of their own, and begin the next period."""
        if self._joined or self._left:
            _log.info(
                "%d more clients joined and %d left; group members now: %d producers, %d consumers",
                *(self._joined, self._left, self._clients.producers.members, self._clients.consumers.members),
            )
        self._named = self._joined = self._left = 0
