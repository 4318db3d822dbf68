"""Selectors over many records at once; for the rest, record by record, as :mod:`cometmq.filter.evaluation` says.

A term that compares a property with a constant is evaluated for all rows of a
:class:`~cometmq.filter.record_block.RecordBlock` by array operations. It says where it is TRUE, and which rows
it cannot tell: values that are written in an unusual way, or that raise an error in Java. Those rows are
evaluated one by one, all of the expression, so that nothing has to be known here about nulls and errors but
one thing: a record matches only if every term of the outermost AND is TRUE.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from cometmq.filter.block_numbers import INT32_DIGITS, INT64_DIGITS, doubles, whole_numbers
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
from cometmq.filter.record_block import WORD, Bools, Ints, RecordBlock, word_key
from cometmq.filter.records import properties_length
from cometmq.limits import MAX_FILTER_BLOCK_WORK, MAX_FILTER_WORK

Predicate = Callable[[memoryview], bool]
REPLACEMENT: Final = "\ufffd"
"""Bytes that are no UTF-8 are read as this character: texts with it are not compared as bytes."""
_IN_VALUES: Final = 8
"""Texts of a list that are compared one after the other; in longer lists values are looked up."""
_ONE_BY_ONE_BELOW: Final = 24
"""Records that are sooner looked at one by one than together."""

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
    """For some rows: where a term is TRUE, and where that is not known (``None``: it is known everywhere)."""

    true: Bools
    unknown: Bools | None = None


Term = Callable[[RecordBlock, Ints], Told]
BlockPredicate = Callable[[memoryview, int, Ints, Ints, int], Bools]


def block_predicate(expression: Expression, matches: Predicate) -> BlockPredicate:
    """The function that tells which of many records match.

    Its arguments are those of :class:`~cometmq.filter.record_block.RecordBlock`; ``matches`` decides about one.
    It tells of fewer records, of one at least, where more would be too much work for one turn of the loop.
    """
    heavy = weight(expression)
    terms: list[Term] = []
    whole = True
    for node in _outermost(expression):
        term = _term(node)
        if term is None:
            whole = False  # rows that pass all other terms are looked at one by one
        else:
            terms.append(term)

    def matching(view: memoryview, base: int, at: Ints, sizes: Ints, topic_bytes: int) -> Bools:
        result = np.zeros(len(at), np.bool_)
        single: Ints = np.arange(len(at))
        if terms and len(at) >= _ONE_BY_ONE_BELOW:
            block = RecordBlock(view, base, at, sizes, topic_bytes)
            if block.properties * heavy <= MAX_FILTER_BLOCK_WORK:
                rows, unknown = _survivors(terms, block)
                if not whole:
                    unknown = rows
                number_of = block.regular.nonzero()[0]
                result[number_of[rows]] = True
                single = np.sort(np.concatenate(((~block.regular).nonzero()[0], number_of[unknown])))
        work = 0
        for number in single.tolist():
            if work > MAX_FILTER_WORK:
                return result[:number]
            start = int(at[number])
            record = view[start : start + int(sizes[number])]
            work += properties_length(record) * heavy
            result[number] = matches(record)
        return result

    return matching


def _survivors(terms: list[Term], block: RecordBlock) -> tuple[Ints, Ints]:
    """The rows for which no term is known not to be TRUE, and those of them for which one is not known."""
    rows = np.arange(block.rows)
    unknown = np.zeros(block.rows, np.bool_)
    for term in terms:
        if not len(rows):
            break
        true, doubt = term(block, rows)
        if doubt is not None:
            unknown[rows[doubt]] = True
            true = true | doubt
        rows = rows[true]
    return rows, rows[unknown[rows]]


def weight(node: Expression) -> int:
    """How many terms read a property."""
    match node:
        case And() | Or():
            return sum(weight(operand) for operand in node.operands)
        case Not():
            return weight(node.operand)
        case _:
            return 1


# --- from tree to terms -----------------------------------------------------------------------
def _outermost(node: Expression) -> list[Expression]:
    """The terms of the outermost AND; those that compare texts, which is quick, come first."""
    if not isinstance(node, And):
        return [node]
    terms = [term for operand in node.operands for term in _outermost(operand)]
    return sorted(terms, key=lambda term: not (isinstance(term, In) or _compares_text(term)))


def _compares_text(node: Expression) -> bool:
    constant = constant_of(node.right) if isinstance(node, Equal) else None
    return constant is not None and constant.kind is Kind.STRING


def _term(node: Expression) -> Term | None:
    """The term of a node, ``None`` for one that is not told by array operations."""
    match node:
        case Or() | And():
            operands = [_term(operand) for operand in node.operands]
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
            return lambda _block, rows: Told(np.zeros(len(rows), np.bool_))
        case Literal():
            always = node.value is True
            return lambda _block, rows: Told(np.full(len(rows), always))
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


def _any_of(operands: list[Term]) -> Term:
    def any_of(block: RecordBlock, rows: Ints) -> Told:
        true = np.zeros(len(rows), np.bool_)
        unknown = np.zeros(len(rows), np.bool_)
        for operand in operands:
            told = operand(block, rows)
            true |= told.true & ~unknown  # what comes before it may have raised an error
            if told.unknown is not None:
                unknown |= told.unknown & ~true
        return Told(true, unknown)

    return any_of


def _all_of(operands: list[Term]) -> Term:
    """AND inside of OR: a null before an error does not hide it, so any doubt is kept."""

    def all_of(block: RecordBlock, rows: Ints) -> Told:
        true = np.ones(len(rows), np.bool_)
        unknown = np.zeros(len(rows), np.bool_)
        for operand in operands:
            told = operand(block, rows)
            true &= told.true
            if told.unknown is not None:
                unknown |= told.unknown
        return Told(true & ~unknown, unknown)

    return all_of


# --- terms ------------------------------------------------------------------------------------
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
    text = _bytes_of(value)
    if text is None:
        return None
    key = name.encode()

    def compared(block: RecordBlock, rows: Ints) -> Told:
        starts, lengths = _values(block, key, rows)
        equal = _equals(block, starts, lengths, text)
        return Told(equal if wanted else (lengths > 0) & ~equal, _valueless(lengths))

    return compared


def _number(name: str, compare: Callable[[Any, Any], Any], kind: Kind, value: float) -> Term:
    key = name.encode()
    digits = INT32_DIGITS if kind is Kind.INTEGER else INT64_DIGITS

    def compared(block: RecordBlock, rows: Ints) -> Told:
        starts, lengths = _values(block, key, rows)
        there = lengths >= 0
        everywhere = bool(there.all())
        if not everywhere:
            starts, lengths = starts[there], lengths[there]
        if kind is Kind.DOUBLE:
            reals, odd = doubles(block.data, starts, lengths)
            true = compare(reals, value)
        else:
            numbers, odd = whole_numbers(block.data, starts, lengths, digits)
            true = compare(numbers, value)
        true &= ~odd
        if everywhere:
            return Told(true, odd if odd.any() else None)
        return Told(_spread(true, there), _spread(odd, there) if odd.any() else None)

    return compared


def _among(node: In) -> Term | None:
    texts = [text for value in node.values if (text := _bytes_of(value)) is not None]
    if len(texts) < len(node.values):
        return None
    short = [(len(text), *word_key(text)) for text in texts if len(text) <= WORD]
    long = [text for text in texts if len(text) > WORD]
    key = node.operand.name.encode()
    all_texts = frozenset(texts)

    def listed(block: RecordBlock, rows: Ints) -> Told:
        starts, lengths = _values(block, key, rows)
        data = block.text
        places = zip(starts.tolist(), (starts + np.maximum(lengths, 0)).tolist(), strict=True)
        found = np.fromiter((data[start:end] in all_texts for start, end in places), np.bool_, len(rows))
        return Told((lengths > 0) & ~found if node.negated else found & (lengths > 0), _valueless(lengths))

    def among(block: RecordBlock, rows: Ints) -> Told:
        starts, lengths = _values(block, key, rows)
        words = block.words(starts)
        found = np.zeros(len(rows), np.bool_)
        for length, mask, word in short:
            found |= (lengths == length) & (words & mask == word)
        for text in long:
            found |= _equals(block, starts, lengths, text)
        return Told((lengths > 0) & ~found if node.negated else found, _valueless(lengths))

    return among if len(texts) <= _IN_VALUES else listed


def _null(node: Expression, *, wanted: bool) -> Term | None:
    if not isinstance(node, Property):
        return None
    key = node.name.encode()

    def null(block: RecordBlock, rows: Ints) -> Told:
        _, lengths = _values(block, key, rows)
        return Told((lengths < 0) if wanted else (lengths > 0), _valueless(lengths))

    return null


def _bytes_of(value: str) -> bytes | None:
    """A text that has one form in bytes only and can be a value; others are left to be compared one by one."""
    if not value or REPLACEMENT in value:
        return None
    try:
        return value.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return None


def _values(block: RecordBlock, name: bytes, rows: Ints) -> tuple[Ints, Ints]:
    column = block.column(name)
    if len(rows) == block.rows:
        return column.starts, column.lengths
    return column.starts[rows], column.lengths[rows]


def _equals(block: RecordBlock, starts: Ints, lengths: Ints, text: bytes) -> Bools:
    found: Bools = lengths == len(text)
    candidates = found.nonzero()[0]
    found[candidates] = block.stands_at(text, starts[candidates])
    return found


def _valueless(lengths: Ints) -> Bools | None:
    empty: Bools = lengths == 0
    return empty if empty.any() else None


def _spread(some: Bools, there: Bools) -> Bools:
    result = np.zeros(len(there), np.bool_)
    result[there] = some
    return result
