"""Selectors over many records at once; for the rest, record by record, as :mod:`cometmq.filter.evaluation` says.

Of the outermost AND each term is told for all rows of a block, those that leave few rows first; what is left
goes on in a narrower block. Rows of which a term cannot tell are evaluated one by one, all of the expression, so
that nothing has to be known here about nulls and errors but one thing: a record matches only if every term of the
outermost AND is TRUE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from cometmq.filter.block_numbers import Bools, Ints
from cometmq.filter.block_terms import Term, term_of
from cometmq.filter.expressions import And, Equal, Expression, In, Kind, Not, Or, Ordering, constant_of
from cometmq.filter.property_rows import BYTES_AS_A_PROPERTY, PropertyRows
from cometmq.filter.record_block import RecordBlock
from cometmq.filter.records import properties_length

Predicate = Callable[[memoryview], bool]


class Looked(NamedTuple):
    """What a look at records found."""

    wanted: Bools
    """Which of the records match: of the first so many, of one at least."""
    work: int
    """What it cost, as ``MAX_FILTER_WORK`` counts it."""


BlockPredicate = Callable[[memoryview, int, Ints, Ints, int, int], Looked]

_ONE_BY_ONE_BELOW: Final = 24
"""Records that are sooner looked at one by one than together."""
_COPIED_BYTES_AS_A_READ_ONE: Final = 2
"""So many bytes are copied and marked while one is read by a term that looks at one record."""
_BYTES_READ_AS_A_PROPERTY: Final = 5
"""So many bytes are read by such a term while another one looks at a property in a block."""


def block_predicate(expression: Expression, matches: Predicate) -> BlockPredicate:
    """The function that tells which of many records match.

    Its arguments are those of :class:`~cometmq.filter.record_block.RecordBlock`, the last one the work that it may
    do: it tells of fewer records where all would be more. ``matches`` decides about one.
    """
    heavy = weight(expression)
    told = [term_of(node) for node in sorted(_outermost(expression), key=_passes)]
    terms = [term for term in told if term is not None]
    whole = len(terms) == len(told)  # else rows that pass all terms are looked at one by one

    def most_bytes(most: int) -> int:
        """How many bytes of rows are that much work at least."""
        of_byte = 1 / _COPIED_BYTES_AS_A_READ_ONE + heavy * _BYTES_READ_AS_A_PROPERTY / BYTES_AS_A_PROPERTY
        return int(most / of_byte)

    def matching(view: memoryview, base: int, at: Ints, sizes: Ints, topic_bytes: int, most: int) -> Looked:
        while True:  # not by calling itself: what refers to itself stays in memory until the garbage is collected
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
    """The rows for which no term is known not to be TRUE, and those of them for which one is not known."""
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
        true, doubt = term.tell(rows)
        if doubt is not None:
            unknown |= doubt
            true = true | doubt
        passed &= true
    return numbers[passed], numbers[passed & unknown]


def weight(node: Expression) -> int:
    """How many terms read a property."""
    match node:
        case And() | Or():
            return sum(weight(operand) for operand in node.operands)
        case Not():
            return weight(node.operand)
        case _:
            return 1


def _outermost(node: Expression) -> list[Expression]:
    """The terms of the outermost AND."""
    if not isinstance(node, And):
        return [node]
    return [term for operand in node.operands for term in _outermost(operand)]


def _passes(node: Expression) -> int:
    """How many rows pass a term, by its kind; of those that pass about as many the quicker ones come first."""
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
