from __future__ import annotations

import pytest

from cometmq.auth.addresses import canonical, parse_pattern
from cometmq.auth.model import AuthError


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("", (), ("10.0.0.1", "::1")),
        (None, (), ("10.0.0.1",)),
        ("*", ("10.0.0.1", "::1"), ()),
        ("*.*.*.*", ("10.0.0.1", "::1"), ()),
        ("10.0.0.1", ("10.0.0.1",), ("10.0.0.10", "110.0.0.1", "::1")),
        ("10.0.0.*", ("10.0.0.1", "10.0.0.255"), ("10.0.1.1", "110.0.0.1", "::ffff")),
        ("10.0.*.*", ("10.0.7.1",), ("10.1.0.1",)),
        ("10.0.0.5-7", ("10.0.0.5", "10.0.0.7"), ("10.0.0.4", "10.0.0.8", "10.0.0.50")),
        ("10.0.5-7.*", ("10.0.6.9",), ("10.0.4.9",)),
        ("10.0.0.{1,3}", ("10.0.0.1", "10.0.0.3"), ("10.0.0.2",)),
        ("10.0.0.1,::1", ("10.0.0.1", "::1"), ("10.0.0.2", "::2")),
        ("2001:db8::1", ("2001:DB8:0:0:0:0:0:1",), ("2001:db8::2",)),
        ("2001:db8::*", ("2001:db8::1", "2001:db8::ffff"), ("2001:db8::1:1", "2001:db9::1")),
        ("1:2:3:4:5:6:7:10-20", ("1:2:3:4:5:6:7:10", "1:2:3:4:5:6:7:20"), ("1:2:3:4:5:6:7:21", "1:2:3:4:5:6:7:9")),
        ("2::ac5:78:1-200:*", ("2::ac5:78:1:9", "2::ac5:78:200:9"), ("2::ac5:78:201:9", "2::ac6:78:1:9")),
        ("2001:db8::{1,3}", ("2001:db8::3",), ("2001:db8::2",)),
    ],
)
def test_a_pattern_means_these_addresses(
    pattern: str | None, inside: tuple[str, ...], outside: tuple[str, ...]
) -> None:
    matches = parse_pattern(pattern)
    assert all(matches(canonical(address)) for address in inside)
    assert not any(matches(canonical(address)) for address in outside)


@pytest.mark.parametrize(
    "pattern",
    [
        "10.0.0",
        "10.0.0.256",
        "10.*",
        "10.0.0.7-5",
        "10.0.0.-5",
        "1-5.0.0.0",
        "10.0.0.1-300",
        "example.org",
        "10.0.0.1,x",
        "10.0.0.{x}",
        "10.{1,2}",
        "2001:*:1",
        "2001:db8::1-g",
        "1" * 5_000,
    ],
)
def test_other_patterns_are_errors_that_show_the_forms(pattern: str) -> None:
    with pytest.raises(AuthError, match="is not an address, a range or a list") as wrong:
        parse_pattern(pattern)
    assert len(str(wrong.value)) < 400
