"""Selectors: expressions compiled to predicates over property maps and stored records."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from operator import methodcaller
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.filter.errors import FilterError
from cometmq.filter.evaluation import Compiler, Truth
from cometmq.filter.expressions import And, Equal, Expression, Kind, Literal, Property, weight
from cometmq.filter.parser import parse
from cometmq.filter.records import REPLACEMENT, properties_of, property_reader
from cometmq.limits import CACHED_FILTERS, CACHED_LONG_FILTERS, LONG_FILTER_CHARS
from cometmq.message.properties import NAME_VALUE_SEPARATOR, decode_properties

if TYPE_CHECKING:
    from cometmq.filter.block_evaluation import BlockPredicate

SQL92: Final = "SQL92"
"""The expression type of these selectors (``ExpressionType.SQL92``)."""

_SHORT_CHARS: Final = 64
_READ_ONE_BY_ONE: Final = 8
"""Maximum number of terms for which each property is searched separately."""


class Selector(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A compiled expression, created by :func:`parse_selector`."""

    text: str
    key: str | bytes
    """A short ID for the expression's text."""
    expression: Expression
    ignored: str
    """The text after the complete expression, which RocketMQ ignores; users should be warned about it."""
    evaluate: Callable[[Mapping[str, str]], Truth]
    """Returns TRUE, FALSE or null (``None``) for a message's properties, or raises EvaluationError."""
    matches: Callable[[Mapping[str, str]], bool]
    """Returns True if a message with these properties matches, and False if it does not or the evaluation fails."""
    matches_record: Callable[[memoryview], bool]
    """Returns True if a stored record matches, and False if it does not or is invalid."""

    @cached_property
    def matches_block(self) -> BlockPredicate:
        """Evaluates many records from one topic and log file at once; see
        :func:`~cometmq.filter.block_evaluation.block_predicate`.
        """
        from cometmq.filter.block_evaluation import block_predicate  # NumPy is a dependency of the server only

        return block_predicate(self.expression, self.matches_record)


def parse_selector(text: str) -> Selector:
    """Compile an expression; results and failures for recent expressions are cached.

    :raises FilterError: the expression is invalid.
    """
    outcome = (_parsed if len(text) <= LONG_FILTER_CHARS else _parsed_long)(text)
    if isinstance(outcome, FilterError):
        raise outcome.with_traceback(None)
    return outcome


def _compile(text: str) -> Selector | FilterError:
    try:
        expression, end = parse(text)
    except FilterError as error:
        return error
    evaluate = Compiler[Mapping[str, str]](_getter).condition(expression)
    return Selector(
        text=text,
        key=text if len(text) <= _SHORT_CHARS else hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest(),
        expression=expression,
        ignored=text[end:].strip(),
        evaluate=evaluate,
        matches=_matches_map(evaluate),
        matches_record=_matches_record(expression),
    )


def _getter(name: str) -> Callable[[Mapping[str, str]], str | None]:
    return methodcaller("get", name)


_parsed = lru_cache(maxsize=CACHED_FILTERS)(_compile)
_parsed_long = lru_cache(maxsize=CACHED_LONG_FILTERS)(_compile)


def _matches_map(evaluate: Callable[[Mapping[str, str]], Truth]) -> Callable[[Mapping[str, str]], bool]:
    def matches(properties: Mapping[str, str]) -> bool:
        try:
            return evaluate(properties) is True
        except Exception:  # as in RocketMQ, after any error the message does not match
            return False

    return matches


def _matches_record(expression: Expression) -> Callable[[memoryview], bool]:
    """Compile the outermost AND to a predicate for records that stops at the first term that is not TRUE.

    Strings that terms require are searched for as bytes before any term is evaluated. If many terms read properties,
    all properties are decoded once.
    """
    terms = expression.operands if isinstance(expression, And) else (expression,)
    if weight(expression) > _READ_ONE_BY_ONE:
        holds = Compiler[Mapping[str, str]](_getter).condition(expression)

        def of_all(text: bytes) -> Truth:
            return holds(decode_properties(text.decode("utf-8", "replace")))

        conditions: list[Callable[[bytes], Truth]] = [of_all]
    else:
        compiler = Compiler[bytes](property_reader)
        conditions = [compiler.condition(term) for term in terms]
    needles = [needle for needle in map(_needle, terms) if needle is not None]

    def matches(record: memoryview) -> bool:
        try:
            text = properties_of(record)
            for needle in needles:
                if needle not in text:
                    return False
            for condition in conditions:
                if not condition(text):
                    return False
        except Exception:  # as in RocketMQ, after any error the message does not match
            return False
        return True

    return matches


def _needle(term: Expression) -> bytes | None:
    """Return the bytes that encoded properties must contain for ``name = 'text'`` to be TRUE."""
    if not isinstance(term, Equal):
        return None
    left, right = term.left, term.right
    if isinstance(left, Literal):
        left, right = right, left
    if not isinstance(left, Property) or not isinstance(right, Literal) or right.kind is not Kind.STRING:
        return None
    value = str(right.value)
    if REPLACEMENT in value:
        return None
    try:
        return f"{left.name}{NAME_VALUE_SEPARATOR}{value}".encode()
    except UnicodeEncodeError:  # half a surrogate pair, which the evaluation never finds
        return None
