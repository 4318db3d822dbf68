"""Every option of a transaction producer (``TransactionMQProducer``)."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.client.producer_config import ProducerConfig
from cometmq.client.ranges import demand_above_zero


@dataclass(frozen=True, kw_only=True)
class TransactionConfig(ProducerConfig):
    """How a transaction producer behaves, on top of :class:`ProducerConfig`.

    :raises ValueError: a value is out of its range.
    """

    execute_threads: int = 20
    """Threads for local work that is a plain function."""
    check_concurrency: int = 4
    """Calls of the checker at the same time."""
    check_request_hold_max: int = 2000
    """Questions of brokers that wait for the checker; further ones are dropped, brokers ask again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_above_zero(self, "execute_threads", "check_concurrency", "check_request_hold_max")
