"""Numbers and blanks, with the answers of Java 17."""

from __future__ import annotations

import pytest

from cometmq.java_values import is_blank, parse_int, parse_long

NUMBERS = {
    "0": 0,
    "-0": 0,
    "+5": 5,
    "007": 7,
    "٣": 3,
    "\uff11٣": 13,
    "0" * 5000 + "5": 5,
    "9223372036854775807": 2**63 - 1,
    "-9223372036854775808": -(2**63),
}
TOO_LONG = ("9223372036854775808", "-9223372036854775809", "9" * 20)
NO_NUMBERS = ("", "+", "-", "--1", " 5", "5 ", "5\n", "\u00a05", "1_0", "1.0", "5x", "²", "\U0001d7d9")


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_are_those_of_java(text: str) -> None:
    assert parse_long(text) == parse_int(text) == NUMBERS[text]


@pytest.mark.parametrize("text", [*NO_NUMBERS, "9" * 5000])
def test_what_is_no_number_for_java_is_none(text: str) -> None:
    for parse in (parse_long, parse_int):
        with pytest.raises(ValueError, match=r"not a whole number|limit"):
            parse(text)


@pytest.mark.parametrize("text", TOO_LONG)
def test_a_long_has_64_bits(text: str) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        parse_long(text)


def test_spaces_that_do_not_break_a_line_are_not_blank() -> None:
    blank = {number for number in range(0x10000) if is_blank(chr(number))}
    java = {*range(9, 14), *range(0x1C, 0x21), 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x205F, 0x3000}
    assert blank == java - {0x2007}
    assert is_blank("")
    assert not is_blank(" \u00a0")
