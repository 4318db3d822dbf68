"""Patterns for the addresses of requests that need no signature, as in ACL 1.0 (``RemoteAddressStrategyFactory``).

One address, ``a,b,…``, ``192.168.0.{1,2}``, ``192.168.0.*``, ``192.168.1-9.*``, the same forms for IPv6, and ``*``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import partial
from typing import Final

from cometmq.auth.model import AuthError
from cometmq.message.hosts import parsed_ip

AddressMatch = Callable[[str], bool]
"""A function that returns whether a pattern matches an address in canonical form."""

_EVERY: Final = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_V4_PARTS: Final = 4
_V4_MAX: Final = 255
_V6_PARTS: Final = 8
_V6_MAX: Final = 0xFFFF
_MAX_CHARS: Final = 4_096


def canonical(address: str) -> str:
    """Return an address in canonical form: IPv6 addresses have eight groups of four digits."""
    found = parsed_ip(address)
    if found is None:
        return address
    return found.exploded.upper() if found.version == 6 else str(found)


def never(_address: str) -> bool:
    """Return False for every address."""
    return False


def _always(_address: str) -> bool:
    return True


def parse_pattern(pattern: str | None) -> AddressMatch:
    """Parse a pattern; an empty pattern matches no address.

    :raises AuthError: the pattern has none of these forms.
    """
    if pattern is None or not pattern.strip():
        return never
    if len(pattern) > _MAX_CHARS:
        raise _wrong(pattern)
    if pattern in _EVERY:
        return _always
    try:
        if pattern.endswith("}"):
            head, _, tail = pattern.partition("{")
            if not head.endswith((":", ".")) or (":" not in head and head.count(".") < _V4_PARTS - 1):
                raise _wrong(pattern)
            return _one_of(head + last for last in tail[:-1].split(",") if last)
        if "," in pattern:
            return _one_of(address for address in pattern.split(",") if address)
        if "*" in pattern or "-" in pattern:
            return _v6_range(pattern) if ":" in pattern else _v4_range(pattern)
        return _one_of([pattern])
    except ValueError:
        raise _wrong(pattern) from None


def _wrong(pattern: str) -> AuthError:
    return AuthError(
        f"{pattern[:100]!r} is not an address, a range or a list of addresses",
        next_step="write for example 10.0.0.1, 10.0.0.*, 10.0.0.1-20 or 10.0.0.{1,2}",
    )


def _one_of(addresses: object) -> AddressMatch:
    known = frozenset(canonical(str(ipaddress.ip_address(address))) for address in addresses)  # type: ignore[attr-defined]
    return known.__contains__


def _v4_range(pattern: str) -> AddressMatch:
    parts = [part.strip() for part in pattern.split(".") if part]
    if len(parts) != _V4_PARTS:
        raise ValueError
    for index in (1, 2, 3):
        low, high = _bounds(parts[index], 10, _V4_MAX)
        if high > 0:
            if not all(0 <= int(part) <= _V4_MAX for part in parts[: index - 1]):
                raise ValueError
            return partial(_in_v4, "".join(f"{part}." for part in parts[:index]), index, low, high)
    raise ValueError


def _in_v4(head: str, index: int, low: int, high: int, address: str) -> bool:
    if ":" in address or not address.startswith(head):
        return False
    return low <= int(address.split(".")[index]) <= high


def _v6_range(pattern: str) -> AddressMatch:
    star, minus = pattern.find("*"), pattern.find("-")
    if star not in (-1, len(pattern) - 1):
        raise ValueError
    *before, last = pattern.split(":")
    ranged, index = last, _V6_PARTS - 1
    if star >= 0 and minus >= 0:
        ranged, index = before.pop(), _V6_PARTS - 2
    if minus >= 0 and "-" not in ranged:
        raise ValueError
    head = ":".join(before)
    if "::" in head or head.endswith(":") or head.startswith(":"):
        missing = index - sum(1 for group in before if group)
        if missing < 1 or head.count("::") > 1:
            raise ValueError
        left, _, right = head.partition("::")
        groups = [*_groups(left), *["0"] * missing, *_groups(right)]
    else:
        groups = before
    if len(groups) != index:
        raise ValueError
    low, high = _bounds(ranged, 16, _V6_MAX)
    return partial(_in_v6, "".join(f"{int(group, 16):04X}:" for group in groups), index, low, high)


def _groups(text: str) -> list[str]:
    return [group for group in text.split(":") if group]


def _in_v6(head: str, index: int, low: int, high: int, address: str) -> bool:
    if ":" not in address or not address.startswith(head):
        return False
    return low <= int(address.split(":")[index], 16) <= high


def _bounds(part: str, base: int, largest: int) -> tuple[int, int]:
    """Return the two ends of a range in a pattern, for example 1 and 9 for ``1-9``; both are 0 for a single number.

    :raises ValueError: the range is not valid.
    """
    if part == "*":
        return 0, largest
    if "-" not in part:
        return 0, 0
    ends = [end for end in part.split("-") if end]
    if part.startswith("-") or len(ends) != 2:
        raise ValueError
    low, high = int(ends[0], base), int(ends[1], base)
    if not 0 <= low <= high <= largest:
        raise ValueError
    return low, high
