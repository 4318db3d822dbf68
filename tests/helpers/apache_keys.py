"""Keys of Apache's servers that are no options of ours."""

from __future__ import annotations

from cometmq.apache_keys import apache_keys
from cometmq.options import Option, options_of


def keys_without_effect(config_type: type, classes: tuple[str, ...]) -> dict[str, Option]:
    """The keys of these classes of Apache's that our configuration does not have."""
    ours = options_of(config_type)
    return {key: found for key, found in apache_keys(classes).items() if key not in ours}
