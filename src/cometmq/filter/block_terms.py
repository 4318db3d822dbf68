"""Terms of selectors for all rows of a block: conditions of properties and constants, and AND, OR, NOT of these.

A term says where it is TRUE, and which rows it cannot tell: values that are written in an unusual way, or that
raise an error in Java.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from cometmq.filter.block_numbers import INT32_DIGITS, INT64_DIGITS, Bools
from cometmq.filter.expressions import (
    And,
    BooleanCast,
    Equal,
    Expression,
    In,
    IsNull,
    Kind,
    Literal,
    Not,
    Or,
    Ordering,
    Property,
    constant_of,
)
from cometmq.filter.marked_text import SEPARATOR, Text
from cometmq.filter.property_rows import PropertyRows

REPLACEMENT: Final = "\ufffd"
"""Bytes that are no UTF-8 are read as this character: texts with it are not compared as bytes."""
_IN_VALUES: Final = 8
"""Texts of a list that are compared one after the other; in longer lists values are looked up."""

_OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "<>": operator.ne,
}
_MIRRORED: Final = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
_OPPOSITE: Final = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}


class Told(NamedTuple):
    """Where a term is TRUE, and where that is not known (``None``: it is known everywhere)."""

    true: Bools
    unknown: Bools | None = None


Tell = Callable[[PropertyRows], Told]


class Term(NamedTuple):
    """A condition."""

    names: frozenset[bytes]
    """The properties it reads, as :meth:`PropertyRows.has_columns` knows them."""
    tell: Tell


def term_of(node: Expression) -> Term | None:
    """The term of a node, ``None`` for one that is not told by array operations."""
    match node:
        case Or() | And():
            operands = [term_of(operand) for operand in node.operands]
            known = [operand for operand in operands if operand is not None]
            if len(known) < len(operands):
                return None
            return _any_of(known) if isinstance(node, Or) else _all_of(known)
        case Not():
            return _negated(node.operand)
        case Equal():
            return _compared("=", node.left, node.right)
        case Ordering():
            return _compared(node.operator, node.left, node.right)
        case In():
            return _among(node)
        case IsNull():
            return _null(node.operand, wanted=True)
        case BooleanCast():
            return _always(value=False)
        case Literal():
            return _always(value=node.value is True)
        case _:
            return None


def _negated(node: Expression) -> Term | None:
    """NOT of the terms of which null and FALSE are easily told apart."""
    match node:
        case Equal():
            return _compared("<>", node.left, node.right)
        case Ordering():
            return _compared(_OPPOSITE[node.operator], node.left, node.right)
        case IsNull():
            return _null(node.operand, wanted=False)
        case _:
            return None


def _names(operands: Iterable[Term]) -> frozenset[bytes]:
    return frozenset[bytes]().union(*(operand.names for operand in operands))


def _any_of(operands: list[Term]) -> Term:
    def any_of(rows: PropertyRows) -> Told:
        true = np.zeros(rows.count, np.bool_)
        unknown = np.zeros(rows.count, np.bool_)
        for operand in operands:
            told = operand.tell(rows)
            true |= told.true & ~unknown  # what comes before it may have raised an error
            if told.unknown is not None:
                unknown |= told.unknown & ~true
        return Told(true, unknown)

    return Term(_names(operands), any_of)


def _all_of(operands: list[Term]) -> Term:
    """AND inside of OR: a null before an error does not hide it, so any doubt is kept."""

    def all_of(rows: PropertyRows) -> Told:
        true = np.ones(rows.count, np.bool_)
        unknown = np.zeros(rows.count, np.bool_)
        for operand in operands:
            told = operand.tell(rows)
            true &= told.true
            if told.unknown is not None:
                unknown |= told.unknown
        return Told(true & ~unknown, unknown)

    return Term(_names(operands), all_of)


def _always(*, value: bool) -> Term:
    return Term(frozenset(), lambda rows: Told(np.full(rows.count, value)))


def _compared(symbol: str, left: Expression, right: Expression) -> Term | None:
    if isinstance(right, Property) and symbol in _MIRRORED:
        left, right, symbol = right, left, _MIRRORED[symbol]
    constant = constant_of(right)
    if not isinstance(left, Property) or constant is None or isinstance(constant.value, bool | None):
        return None
    if isinstance(constant.value, str):
        return _text(left.name, constant.value, wanted=symbol == "=")
    return _number(left.name, _OPERATORS[symbol], constant.kind, constant.value)


def _text(name: str, value: str, *, wanted: bool) -> Term | None:
    text = _value_of(value)
    if text is None:
        return None
    key = Text.name(name)

    def equal(rows: PropertyRows) -> Told:
        column = rows.column(key)
        return Told(column.is_text(text), column.valueless)

    def unequal(rows: PropertyRows) -> Told:
        column = rows.column(key)
        return Told(column.valued(~column.is_text(text)), column.valueless)

    return Term(frozenset([key.text]), equal if wanted else unequal)


def _number(name: str, compare: Callable[[Any, Any], Any], kind: Kind, constant: float) -> Term:
    key = Text.name(name)
    digits = INT32_DIGITS if kind is Kind.INTEGER else INT64_DIGITS

    def compared(rows: PropertyRows) -> Told:
        column = rows.column(key)
        values, odd = column.doubles() if kind is Kind.DOUBLE else column.whole_numbers(digits)
        true = compare(values, constant)
        if odd is not None:
            true &= ~odd
        return Told(true if column.there is None else true & column.there, odd)

    return Term(frozenset([key.text]), compared)


def _among(node: In) -> Term | None:
    texts = [text for value in node.values if (text := _value_of(value)) is not None]
    if len(texts) < len(node.values):
        return None
    key = Text.name(node.operand.name)
    all_texts = frozenset(text.text[:-1] for text in texts)

    def listed(rows: PropertyRows) -> Told:
        column = rows.column(key)
        data = rows.text
        places = zip(column.starts.tolist(), (column.starts + column.lengths).tolist(), strict=True)
        found = np.fromiter((data[start:end] in all_texts for start, end in places), np.bool_, rows.count)
        return Told(column.valued(~found) if node.negated else found, column.valueless)

    def among(rows: PropertyRows) -> Told:
        column = rows.column(key)
        found = np.zeros(rows.count, np.bool_)
        for text in texts:
            found |= column.is_text(text)
        return Told(column.valued(~found) if node.negated else found, column.valueless)

    return Term(frozenset([key.text]), among if len(texts) <= _IN_VALUES else listed)


def _null(node: Expression, *, wanted: bool) -> Term | None:
    if not isinstance(node, Property):
        return None
    key = Text.name(node.name)

    def null(rows: PropertyRows) -> Told:
        column = rows.column(key)
        if not wanted:
            return Told(column.valued(np.ones(rows.count, np.bool_)), column.valueless)
        return Told(np.zeros(rows.count, np.bool_) if column.there is None else ~column.there, column.valueless)

    return Term(frozenset([key.text]), null)


def _value_of(value: str) -> Text | None:
    """A text that has one form in bytes only and can be a value; others are left to be compared one by one."""
    if not value or REPLACEMENT in value:
        return None
    try:
        text = value.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return None
    return None if SEPARATOR in text else Text.of(text + bytes((SEPARATOR,)))
