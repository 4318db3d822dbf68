"""HeldLitePop: a pop that waits until a lite topic of its client is ready (``PopLiteLongPollingService``).

If a few clients of a group wait for the same lite topic, all of them are called, one after the other: the first one
takes the messages, and the others find the lite topic locked and go on waiting. Of many clients, one is called
(:mod:`.crowd`).
"""

from __future__ import annotations

from cometmq.broker.pop.held_requests import HeldRequest, Key


class HeldLitePop(HeldRequest, eq=False):
    """A held pop of lite topics."""

    @property
    def key(self) -> Key:
        """Return the ID and the group of the client."""
        return self.request.header.client_id, self.request.header.consumer_group
