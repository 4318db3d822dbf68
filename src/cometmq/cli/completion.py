"""``cometmq completion``: print a script that lets a shell complete commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_COMETMQ_COMPLETE"
"""Environment variable that the script sets to request completions from click."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  echo 'eval "$(cometmq completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(cometmq completion zsh)"' >> ~/.zshrc
    fish:  cometmq completion fish > ~/.config/fish/completions/cometmq.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "cometmq", VARIABLE).source())
