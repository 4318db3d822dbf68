"""``cometmq failover``: show sets that elect their master, hand over, and force an election."""

from __future__ import annotations

import click

from cometmq.cli.admin.failover.commands import force, handover
from cometmq.cli.admin.failover.status import status


@click.group("failover")
def command() -> None:
    """Show sets of brokers that elect their master, hand over, and force an election."""


for one in (status, handover, force):
    command.add_command(one)
