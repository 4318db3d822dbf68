"""``cometmq message why``: explain why a group has not consumed a message."""

from __future__ import annotations

from typing import Any, Final

import click

from cometmq.cli.connection import administer, demand_group_name, demand_topic_name, namesrv_option
from cometmq.cli.failures import WrongUseError
from cometmq.cli.names import BROKER, GROUP, TOPIC
from cometmq.cli.output import Column, notify, output_option, show
from cometmq.client.admin import Admin
from cometmq.client.diagnosis import Explanation, Question, Verdict, why_not_consumed

_COLUMNS: Final = (
    Column("check", "Check"),
    Column("verdict", "Verdict"),
    Column("evidence", "Evidence", prose=True),
    Column("next_step", "Next step", prose=True),
)


@click.command("why")
@click.argument("message_id", metavar="[ID]", default="")
@click.option("--topic", type=TOPIC, required=True, help="Topic to which the message was sent.")
@click.option("--group", type=GROUP, required=True, help="Consumer group that should have consumed the message.")
@click.option("--broker", type=BROKER, default="", help="Broker of the queue, if several brokers have the topic.")
@click.option("--queue", type=click.IntRange(0), help="Queue number, if there is no ID.")
@click.option("--offset", type=click.IntRange(0), help="Offset in the queue, if there is no ID.")
@click.option("--account", default="", help="Also check what this account may do, which the group's members use.")
@namesrv_option
@output_option
def why(
    message_id: str,
    topic: str,
    group: str,
    broker: str,
    queue: int | None,
    offset: int | None,
    account: str,
    namesrv: str,
    output: str,
) -> None:
    """Explain why a group has not consumed a message.

    ID is the client's unique key or the broker's offset id. Alternatively, give --queue and --offset. Every possible
    cause is checked, and nothing is changed.
    """
    if bool(message_id) == (offset is not None) or (queue is None) != (offset is None):
        raise WrongUseError("the message is not clear", next_step="give its ID, or --queue and --offset")
    demand_topic_name(topic)
    demand_group_name(group)
    question = Question(topic, group, message_id, broker, queue, offset, account)

    async def work(admin: Admin) -> Explanation:
        return await why_not_consumed(admin, question)

    found = administer(namesrv, work)
    columns = _COLUMNS[:-1] if output == "table" else _COLUMNS
    show(rows_of(found), columns, output, title=f"Why {group} has not consumed {found.msg_id or message_id}")
    if output == "table":
        notify(found.answer)
        if found.decisive is not None and found.decisive.next_step:
            notify(f"Next step: {found.decisive.next_step}")


def rows_of(found: Explanation) -> list[dict[str, Any]]:
    """Return a row for each check; checks that rule out a cause have no next step."""
    return [
        {
            "check": check.name,
            "verdict": check.verdict.value,
            "evidence": check.evidence,
            "next_step": check.next_step if check.verdict is not Verdict.RULED_OUT else "",
        }
        for check in found.checks
    ]
