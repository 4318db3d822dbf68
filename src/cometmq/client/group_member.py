"""A consumer as the instance that it shares with others knows it (``MQConsumerInner``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from cometmq.message.message import MessageExt
from cometmq.remoting.bodies import ConsumeMessageDirectlyResult, ConsumerData, ConsumerRunningInfo, MessageQueue


class GroupMember(Protocol):
    """A consumer as its instance knows it."""

    @property
    def heartbeat(self) -> ConsumerData:
        """What brokers are told about it."""

    def running_info(self) -> ConsumerRunningInfo:
        """What administrators are told about it."""

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult | None:
        """Consume one message because an administrator says so; ``None`` where there is no listener."""

    def members_changed(self) -> None:
        """Somebody joined or left the group."""

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """An administrator has moved the group in these queues."""

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        """How far this member is in its queues of a topic."""
