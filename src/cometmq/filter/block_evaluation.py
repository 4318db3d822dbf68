"""Evaluates a selector for many records at once, with array operations.

Theory of operation. A record matches only if every term of the outermost AND is TRUE. The terms are evaluated one after
the other for all rows of a block, starting with the most selective one, and the remaining rows form a smaller block. A
term is *TRUE*, *not TRUE* or *unknown* for each row; unknown means that the value has an unusual form or causes an
error in Java. If a row is unknown for a term and no other term excludes it, it is evaluated separately by
:mod:`cometmq.filter.evaluation`. Therefore this module needs no rules for nulls and errors, and its result is the same
as that of evaluating each record separately.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from cometmq.filter.block_numbers import INT32_DIGITS, INT64_DIGITS, Bools, Ints
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
    weight,
)
from cometmq.filter.property_rows import BYTES_AS_A_PROPERTY, SEPARATOR, PropertyRows, Text
from cometmq.filter.record_block import RecordBlock
from cometmq.filter.records import REPLACEMENT, properties_length

_IN_VALUES: Final = 8
"""Maximum length of a list whose strings are compared one by one."""

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


class Truth(NamedTuple):
    """The rows for which a term is TRUE, and those for which it is unknown (``None`` if there are none)."""

    true: Bools
    unknown: Bools | None = None


Evaluate = Callable[[PropertyRows], Truth]


class Term(NamedTuple):
    """A condition on a property and constants, or a combination of conditions by AND, OR and NOT."""

    names: frozenset[bytes]
    """The properties that the term reads, for :meth:`PropertyRows.has_columns`."""
    evaluate: Evaluate


def term_of(node: Expression) -> Term | None:
    """Compile a node to a term, or return ``None`` if array operations cannot evaluate it."""
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
    """Negate a term if null and FALSE are easy to distinguish."""
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
    def any_of(rows: PropertyRows) -> Truth:
        true = np.zeros(rows.count, np.bool_)
        unknown = np.zeros(rows.count, np.bool_)
        for operand in operands:
            truth = operand.evaluate(rows)
            true |= truth.true & ~unknown  # an earlier term may have raised an error
            if truth.unknown is not None:
                unknown |= truth.unknown & ~true
        return Truth(true, unknown)

    return Term(_names(operands), any_of)


def _all_of(operands: list[Term]) -> Term:
    """Combine the terms of an AND that is part of a larger term. A row that is unknown for any of them is unknown for
    the result.
    """

    def all_of(rows: PropertyRows) -> Truth:
        true = np.ones(rows.count, np.bool_)
        unknown = np.zeros(rows.count, np.bool_)
        for operand in operands:
            truth = operand.evaluate(rows)
            true &= truth.true
            if truth.unknown is not None:
                unknown |= truth.unknown
        return Truth(true & ~unknown, unknown)

    return Term(_names(operands), all_of)


def _always(*, value: bool) -> Term:
    return Term(frozenset(), lambda rows: Truth(np.full(rows.count, value)))


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

    def equal(rows: PropertyRows) -> Truth:
        column = rows.column(key)
        return Truth(column.is_text(text), column.valueless)

    def unequal(rows: PropertyRows) -> Truth:
        column = rows.column(key)
        return Truth(column.valued(~column.is_text(text)), column.valueless)

    return Term(frozenset([key.text]), equal if wanted else unequal)


def _number(name: str, compare: Callable[[Any, Any], Any], kind: Kind, constant: float) -> Term:
    key = Text.name(name)
    digits = INT32_DIGITS if kind is Kind.INTEGER else INT64_DIGITS

    def compared(rows: PropertyRows) -> Truth:
        column = rows.column(key)
        values, odd = column.doubles() if kind is Kind.DOUBLE else column.whole_numbers(digits)
        true = compare(values, constant)
        if odd is not None:
            true &= ~odd
        return Truth(true if column.there is None else true & column.there, odd)

    return Term(frozenset([key.text]), compared)


def _among(node: In) -> Term | None:
    texts = [text for value in node.values if (text := _value_of(value)) is not None]
    if len(texts) < len(node.values):
        return None
    key = Text.name(node.operand.name)
    all_texts = frozenset(text.text[:-1] for text in texts)

    def listed(rows: PropertyRows) -> Truth:
        column = rows.column(key)
        data = rows.text
        places = zip(column.starts.tolist(), (column.starts + column.lengths).tolist(), strict=True)
        found = np.fromiter((data[start:end] in all_texts for start, end in places), np.bool_, rows.count)
        return Truth(column.valued(~found) if node.negated else found, column.valueless)

    def among(rows: PropertyRows) -> Truth:
        column = rows.column(key)
        found = np.zeros(rows.count, np.bool_)
        for text in texts:
            found |= column.is_text(text)
        return Truth(column.valued(~found) if node.negated else found, column.valueless)

    return Term(frozenset([key.text]), among if len(texts) <= _IN_VALUES else listed)


def _null(node: Expression, *, wanted: bool) -> Term | None:
    if not isinstance(node, Property):
        return None
    key = Text.name(node.name)

    def null(rows: PropertyRows) -> Truth:
        column = rows.column(key)
        if not wanted:
            return Truth(column.valued(np.ones(rows.count, np.bool_)), column.valueless)
        return Truth(np.zeros(rows.count, np.bool_) if column.there is None else ~column.there, column.valueless)

    return Term(frozenset([key.text]), null)


def _value_of(value: str) -> Text | None:
    """Encode a string constant for comparison; return ``None`` if the string must be compared row by row."""
    if not value or REPLACEMENT in value:
        return None
    try:
        text = value.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return None
    return None if SEPARATOR in text else Text.of(text + bytes((SEPARATOR,)))


Predicate = Callable[[memoryview], bool]


class Looked(NamedTuple):
    """The matching records in an evaluated block, and the cost of the evaluation."""

    wanted: Bools
    """For each evaluated record, whether it matches."""
    work: int
    """The cost of the evaluation, in the same unit as ``MAX_FILTER_WORK``."""


BlockPredicate = Callable[[memoryview, int, Ints, Ints, int, int], Looked]

_ONE_BY_ONE_BELOW: Final = 24
"""Minimum number of records in a block; fewer records are evaluated one by one."""
_COPIED_BYTES_AS_A_READ_ONE: Final = 2
"""Cost ratio between reading a byte in a single record and copying a byte into a block."""
_BYTES_READ_AS_A_PROPERTY: Final = 5
"""Cost ratio between comparing a property in a block and reading a byte in a single record."""


def block_predicate(expression: Expression, matches: Predicate) -> BlockPredicate:
    """Compile a function that evaluates many records at once.

    Its arguments are those of :class:`~cometmq.filter.record_block.RecordBlock`. The last argument limits its work: it
    evaluates fewer records if evaluating all of them would exceed the limit. ``matches`` evaluates a single record.
    """
    heavy = weight(expression)
    found = [term_of(node) for node in sorted(_outermost(expression), key=_passes)]
    terms = [term for term in found if term is not None]
    whole = len(terms) == len(found)  # otherwise rows that pass all terms are evaluated one by one

    def most_bytes(most: int) -> int:
        """Return the total size of the rows, in bytes, at which evaluating them takes ``most`` work or more."""
        of_byte = 1 / _COPIED_BYTES_AS_A_READ_ONE + heavy * _BYTES_READ_AS_A_PROPERTY / BYTES_AS_A_PROPERTY
        return int(most / of_byte)

    def matching(view: memoryview, base: int, at: Ints, sizes: Ints, topic_bytes: int, most: int) -> Looked:
        while True:  # no recursion: a self-referencing closure stays in memory until garbage collection
            result = np.zeros(len(at), np.bool_)
            single: Ints = np.arange(len(at))
            work = 0
            if not terms or len(at) < _ONE_BY_ONE_BELOW:
                break
            block = RecordBlock(view, base, at, sizes, topic_bytes, most_bytes(most))
            copied = len(block.rows.data) // _COPIED_BYTES_AS_A_READ_ONE
            work = copied + block.rows.work * heavy * _BYTES_READ_AS_A_PROPERTY
            count = len(block.regular)
            if work > most:
                count = count * most // work
                if count >= _ONE_BY_ONE_BELOW:
                    at, sizes = at[:count], sizes[:count]
                    continue
            if count < _ONE_BY_ONE_BELOW:
                work = copied
                break
            result = result[:count]
            rows, unknown = _survivors(terms, block.rows)
            if block.rows.count == count:
                result[rows] = True
                single = unknown if whole else rows
            else:
                number_of = block.regular.nonzero()[0]
                result[number_of[rows]] = True
                unsure = number_of[unknown if whole else rows]
                single = np.sort(np.concatenate(((~block.regular).nonzero()[0], unsure)))
            break
        for number in single.tolist():
            if work > most and number:
                return Looked(result[:number], work)
            start = int(at[number])
            record = view[start : start + int(sizes[number])]
            work += properties_length(record) * heavy
            result[number] = matches(record)
        return Looked(result, work)

    return matching


def _survivors(terms: list[Term], rows: PropertyRows) -> tuple[Ints, Ints]:
    """Return the rows that no term excludes, and those that are unknown for a term."""
    numbers = np.arange(rows.count)
    passed = np.ones(rows.count, np.bool_)
    unknown = np.zeros(rows.count, np.bool_)
    for term in terms:
        if not rows.has_columns(term.names):
            left = passed.nonzero()[0]
            if not len(left):
                break
            if 2 * len(left) <= rows.count:
                rows = rows.narrowed(left)
                numbers, passed, unknown = numbers[left], passed[left], unknown[left]
        true, doubt = term.evaluate(rows)
        if doubt is not None:
            unknown |= doubt
            true = true | doubt
        passed &= true
    return numbers[passed], numbers[passed & unknown]


def _outermost(node: Expression) -> list[Expression]:
    """Return the terms of the outermost AND."""
    if not isinstance(node, And):
        return [node]
    return [term for operand in node.operands for term in _outermost(operand)]


def _passes(node: Expression) -> int:
    """Return a sort key for terms: the usual share of rows for which the term is TRUE, then the cost."""
    match node:
        case Equal():
            constant = constant_of(node.right)
            return 0 if constant is not None and constant.kind is Kind.STRING else 2
        case In():
            return 4 if node.negated else 1
        case Ordering():
            return 3
        case _:
            return 5
