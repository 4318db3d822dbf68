"""Recently departed brokers, for tools that show missing brokers.

A broker that was stopped is remembered for ten minutes, a broker that disappeared for a day. A broker is forgotten when
it registers again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cometmq.namesrv.limits import MAX_NAMESRV_BROKERS
from cometmq.namesrv.routes import BrokerIdentity
from cometmq.remoting.bodies import GoneBroker

STOPPED_SECONDS: Final = 600.0
VANISHED_SECONDS: Final = 86_400.0

STOPPED: Final = "it stopped"
CLOSED: Final = "its connection closed"
SILENT: Final = "it was silent for too long"


class _Departure(NamedTuple):
    address: str
    at_s: float
    reason: str


class GoneBrokers:
    """The recently departed brokers; at most ``MAX_NAMESRV_BROKERS`` are remembered."""

    def __init__(self) -> None:
        self._departures: dict[tuple[str, str, int], _Departure] = {}

    def record(self, identity: BrokerIdentity, reason: str, now_s: float) -> None:
        """Remember a broker that has just left."""
        key = (identity.cluster, identity.name, identity.broker_id)
        self._departures.pop(key, None)  # keep the order of departures
        self._departures[key] = _Departure(identity.address, now_s, reason)
        if len(self._departures) > MAX_NAMESRV_BROKERS:
            del self._departures[next(iter(self._departures))]

    def forget(self, identity: BrokerIdentity) -> None:
        """Forget a broker that has registered again."""
        self._departures.pop((identity.cluster, identity.name, identity.broker_id), None)

    def brokers(self, now_s: float) -> list[GoneBroker]:
        """Return the recently departed brokers, sorted by name."""
        for key, gone in list(self._departures.items()):
            if now_s - gone.at_s >= (STOPPED_SECONDS if gone.reason == STOPPED else VANISHED_SECONDS):
                del self._departures[key]
        return [
            GoneBroker(
                cluster=cluster,
                broker_name=name,
                broker_id=broker_id,
                broker_addr=gone.address,
                gone_for_ms=int((now_s - gone.at_s) * 1000),
                reason=gone.reason,
            )
            for (cluster, name, broker_id), gone in sorted(self._departures.items())
        ]
