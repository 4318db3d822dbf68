"""Finds the hooks that the configuration names among the installed entry points, and nowhere else.

A distribution offers hooks with an entry point of the group ``cometmq.hooks``: a function that takes the
broker's configuration and returns :class:`~cometmq.broker.message_hooks.BrokerHooks`. The key
``hookNames`` chooses by name; its text is never imported or executed.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Final

from cometmq.broker.config import BrokerConfig
from cometmq.broker.message_hooks import BrokerHooks
from cometmq.options import ConfigError

GROUP: Final = "cometmq.hooks"


def load_hooks(config: BrokerConfig) -> BrokerHooks:
    """The hooks of ``hookNames``, in that order.

    :raises ConfigError: no installed distribution offers one of that name, or what it offers are no hooks.
    """
    found = BrokerHooks()
    names = [name for part in config.hook_names.split(",") if (name := part.strip())]
    if not names:
        return found
    offered = {point.name: point for point in entry_points(group=GROUP)}
    for name in names:
        if name not in offered:
            known = ", ".join(sorted(offered)) or "none"
            raise ConfigError(f"hookNames: no installed package offers the hook {name}; offered: {known}")
        hooks = offered[name].load()(config)
        if not isinstance(hooks, BrokerHooks):
            raise ConfigError(f"hookNames: {name} gives {type(hooks).__name__}, not BrokerHooks")
        found += hooks
    return found
