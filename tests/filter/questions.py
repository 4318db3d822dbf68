"""Selectors and properties made by chance, of the kinds in which implementations differ."""

from __future__ import annotations

import random

NAMES = ("a", "b", "c", "_x", "$y", "A")
STRINGS = ("'x'", "'1'", "''", "'it''s'", "'true'", "'5.5'", "'ü€'", "'9 \t'")
INTEGERS = ("0", "1", "5", "5L", "7l", "2147483647", "2147483648", "9223372036854775807", "9007199254740993")
REFUSED_NUMBERS = ("9223372036854775808", "0.0", "1E400", "007", "0x1F", "1_0")
FLOATS = ("5.5", "5.", ".5", "5E0", "1e308", "9007199254740992.0", "4.9E-324", "2.5e-3", "007.5")
VALUES = (
    "1", "5", "5.5", "-5", "+5", "007", "x", "it's", "true", "TRUE", "false", "NaN", "Infinity", "-Infinity", "-0.0",
    "0.0", "0", "1e3", "1d", "5f", "5L", " 5 ", "5 ", "0x1p3", "0x.8p1", "1_0", "٣", "٣.5", "99999999999", "2147483648",
    "-2147483648", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "1e400", "inf", "nan",
    "4.9E-324", "9007199254740993", "ü€", "", ".", "+", "-", "1.5.5", "000000000000000000000000001", "9 \t", "\x1c5",
    "\u00a05", "0x1p99999", "𝟓",
)  # fmt: skip
ORDERINGS = ("<", ">", "<=", ">=")
JUNK = (
    "AND", "OR", "NOT", "(", ")", "=", "<>", "!=", "<", "IN", "BETWEEN", "IS", "NULL", ",", "''", "'", "-", "--",
    "-- c\n", "/* c */", "/*", "+", ";", "a", "5", "TRUE", "LIKE", "中", ".", "\r\n", "\x0b", "CONTAINS", "\"", "''''",
)  # fmt: skip


def expression(chance: random.Random) -> str:
    """A selector, most of them well-formed."""
    text = _or(chance, 3)
    if chance.random() < 0.1:
        words = text.split(" ")
        words.insert(chance.randrange(len(words) + 1), chance.choice(JUNK))
        text = " ".join(words)
    if chance.random() < 0.05:
        text = text[: chance.randrange(len(text) + 1)]
    if chance.random() < 0.05:
        text = text.lower()
    return text


def junk(chance: random.Random) -> str:
    """Words of the language in no order."""
    return " ".join(chance.choices(JUNK, k=chance.randrange(1, 12)))


def properties(chance: random.Random) -> dict[str, str]:
    """Some of the names with values on which conversions fail or surprise."""
    return {name: chance.choice(VALUES) for name in NAMES if chance.random() < 0.7}


def _or(chance: random.Random, depth: int) -> str:
    return f" {chance.choice(('OR', 'or'))} ".join(_and(chance, depth) for _ in range(chance.choice((1, 1, 1, 2, 3))))


def _and(chance: random.Random, depth: int) -> str:
    return " AND ".join(_equality(chance, depth) for _ in range(chance.choice((1, 1, 2, 3))))


def _equality(chance: random.Random, depth: int) -> str:
    shape = chance.random()
    if shape < 0.4:
        return _comparison(chance, depth)
    left, right = (_comparison(chance, depth) if chance.random() < 0.1 else _operand(chance, depth) for _ in range(2))
    if shape < 0.85:
        return f"{left} {chance.choice(('=', '<>'))} {right}"
    return left + chance.choice((" IS NULL", " IS NOT NULL", " is not null"))


def _comparison(chance: random.Random, depth: int) -> str:
    left = _number(chance, depth)
    shape = chance.random()
    if shape < 0.55:
        return f"{left} {chance.choice(ORDERINGS)} {_number(chance, depth)}"
    if shape < 0.75:
        return f"{left}{chance.choice((' ', ' NOT '))}BETWEEN {_number(chance, 0)} AND {_number(chance, 0)}"
    if shape < 0.9:
        strings = ",".join(chance.choices(STRINGS, k=chance.randrange(1, 7)))
        return f"{chance.choice(NAMES)}{chance.choice((' ', ' NOT '))}IN ({strings})"
    return chance.choice((*NAMES, "TRUE", "FALSE", "NULL", f"NOT ({_or(chance, max(depth - 1, 0))})"))


def _number(chance: random.Random, depth: int) -> str:
    """An operand that may be ordered, most of the time."""
    if chance.random() < 0.02:
        return _operand(chance, depth)
    return chance.choice(("", "", "", "-", "+")) + chance.choice(chance.choice((NAMES, INTEGERS, FLOATS)))


def _operand(chance: random.Random, depth: int) -> str:
    """An operand that may stand beside an equals sign, most of the time."""
    sign = chance.choices(("", "-", "+"), (90, 7, 3))[0]
    if depth and chance.random() < 0.15:
        return f"{sign}({_or(chance, depth - 1)})"
    kinds = (NAMES, INTEGERS, FLOATS, STRINGS, ("TRUE", "FALSE", "true"), ("NULL", *REFUSED_NUMBERS))
    return sign + chance.choice(chance.choices(kinds, (100, 28, 20, 24, 12, 1))[0])
