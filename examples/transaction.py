"""Move money and send a message about it, or do neither.

python examples/transaction.py [NAMESRV]
"""

import asyncio
import sys
from typing import Any

from cometmq.client import Message, MessageExt, TransactionProducer, TransactionState

accounts = {"alice": 100, "bob": 0}
transfers: set[str] = set()
"""Ids of finished transactions; in real life a table in the same database as the accounts."""


def transfer(message: Message, arg: Any, transaction_id: str) -> TransactionState:
    """Do the local work: change both accounts and store the transaction id, in one database transaction."""
    amount: int = arg
    if accounts["alice"] < amount:
        return TransactionState.ROLLBACK
    accounts["alice"] -= amount
    accounts["bob"] += amount
    transfers.add(transaction_id)
    return TransactionState.COMMIT


def was_done(message: MessageExt) -> TransactionState:
    """Answer a broker that heard nothing, perhaps because this process crashed in between."""
    return TransactionState.COMMIT if message.msg_id in transfers else TransactionState.ROLLBACK


async def main(namesrv: str) -> None:
    """Make two transfers, of which alice cannot pay the second."""
    async with TransactionProducer("bank", transfer, was_done, namesrv) as producer:
        for amount in (70, 70):
            message = Message("transfers", b"alice pays bob %d" % amount)
            result = await producer.send_in_transaction(message, amount)
            print(f"{amount}: {result.state.name}, the broker knows: {result.confirmed}")
    print(f"alice has {accounts['alice']}, bob has {accounts['bob']}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876"))
