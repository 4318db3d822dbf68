"""Keys of Apache's servers that are no options of ours."""

from __future__ import annotations

from cometmq.apache_keys import apache_keys
from cometmq.options import ConfigError, Option, options_of, parse_value


def keys_without_effect(config_type: type, classes: tuple[str, ...]) -> dict[str, Option]:
    """The keys of these classes of Apache's that our configuration does not have."""
    ours = options_of(config_type)
    return {key: found for key, found in apache_keys(classes).items() if key not in ours}


def another_value(found: Option) -> str:
    """The text of a value that is allowed, and not the default."""
    texts = ("some text", "0.5", "1.5", "7", "8", "true", "false")
    return next(text for text in texts if text != found.default and _is_allowed(found, text))


def _is_allowed(found: Option, text: str) -> bool:
    try:
        parse_value(found, text)
    except ConfigError:
        return False
    return True
