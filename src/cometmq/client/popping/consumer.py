"""The common base of consumers that pop messages: their brokers know all offsets, and share the messages."""

from __future__ import annotations

from collections.abc import Mapping

from cometmq.client.errors import ClientStateError
from cometmq.client.group_client import GroupClient
from cometmq.remoting.bodies import MessageQueue


class PoppingConsumer(GroupClient):
    """A member of a consumer group that owns no queues; see ``GroupMember``."""

    _state: str = "not started"

    def _demand_not_started(self) -> None:
        """Check that the consumer was not started before.

        :raises ClientStateError: the consumer was started before.
        """
        if self._state != "not started":
            raise ClientStateError(
                f"the consumer of group {self.group} is {self._state}", next_step="create a new consumer"
            )

    def members_changed(self) -> None:
        """Do nothing, because brokers share the messages among the members."""

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Do nothing, because the offsets are on the brokers."""

    def positions(self, topic: str) -> dict[MessageQueue, int]:  # noqa: ARG002
        """Return nothing, because the offsets are on the brokers."""
        return {}
