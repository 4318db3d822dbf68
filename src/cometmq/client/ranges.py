"""The ranges that numbers in the clients' configurations must be in."""

from __future__ import annotations


def demand_above_zero(config: object, *names: str) -> None:
    """Refuse options that are 0 or less.

    :raises ValueError: naming the option.
    """
    for name in names:
        if getattr(config, name) <= 0:
            raise ValueError(f"{name} must be above 0, not {getattr(config, name)}")


def demand_zero_or_more(config: object, *names: str) -> None:
    """Refuse options that are less than 0.

    :raises ValueError: naming the option.
    """
    for name in names:
        if getattr(config, name) < 0:
            raise ValueError(f"{name} must not be below 0, but is {getattr(config, name)}")
