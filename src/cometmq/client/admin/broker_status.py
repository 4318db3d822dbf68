"""A broker's state in figures, from its runtime information; the keys of CometMQ and Apache differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class BrokerStatus:
    """A broker's figures. Figures that the broker does not report are ``None``."""

    version: str | None
    cometmq: str | None
    """CometMQ's version."""
    in_per_s: float | None
    """Messages stored per second over the last ten seconds."""
    out_per_s: float | None
    """Messages read per second over the last ten seconds."""
    messages_today: int | None
    log_bytes: int | None
    disk_used_percent: float | None
    """Percentage of the log's disk that is used."""
    dispatch_behind_bytes: int | None
    """Number of bytes in the log that have no queue entries yet."""
    failover_state: str | None
    """The state of a member of a set that elects its master."""

    @classmethod
    def of(cls, table: Mapping[str, str]) -> BrokerStatus:
        """Parse the response to GET_BROKER_RUNTIME_INFO."""
        put_now, put_morning = _whole(table, "msgPutTotalTodayNow"), _whole(table, "msgPutTotalTodayMorning")
        low, high = _whole(table, "commitLogMinOffset"), _whole(table, "commitLogMaxOffset")
        ratio = _number(table.get("commitLogDiskRatio"))
        return cls(
            version=table.get("brokerVersionDesc"),
            cometmq=table.get("cometmqVersion"),
            in_per_s=_first_average(table.get("putTps")),
            out_per_s=_first_average(table.get("getTransferedTps") or table.get("getTransferredTps")),
            messages_today=None if put_now is None or put_morning is None else put_now - put_morning,
            log_bytes=None if low is None or high is None else high - low,
            disk_used_percent=None if ratio is None else round(ratio * 100, 1),
            dispatch_behind_bytes=_whole(table, "dispatchBehindBytes"),
            failover_state=table.get("failoverState"),
        )


def _whole(table: Mapping[str, str], key: str) -> int | None:
    text = table.get(key, "")
    return int(text) if text.lstrip("-").isdecimal() else None


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _first_average(text: str | None) -> float | None:
    """Return the average over ten seconds, the first of several, or ``None`` while the broker reports none."""
    first = _number((text or "").split(" ")[0])
    return None if first is None else round(first, 1)
