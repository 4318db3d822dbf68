"""Compiles a syntax tree to functions, with three-valued logic and RocketMQ's conversions (``*Expression.evaluate``).

A tree is compiled once to closures. The closures read properties with functions supplied by the caller, so that the
same tree works for a map and for a record's bytes. ``None`` is SQL's null.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, assert_never

from cometmq.filter.conversions import PARSERS, compare_doubles, compare_numbers, to_double
from cometmq.filter.errors import EvaluationError
from cometmq.filter.expressions import (
    NUMBERS,
    And,
    BooleanCast,
    Equal,
    Expression,
    In,
    IsNull,
    Kind,
    Literal,
    Negate,
    Not,
    Or,
    Ordering,
    Property,
    Value,
    constant_of,
    kind_of,
)

Source = TypeVar("Source")
Truth = bool | None

_OF_SIGN: Final[dict[str, Callable[[int], bool]]] = {
    ">": lambda sign: sign > 0,
    ">=": lambda sign: sign >= 0,
    "<": lambda sign: sign < 0,
    "<=": lambda sign: sign <= 0,
}
_OF_WHOLE_NUMBERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "<>": operator.ne,
}
_OF_DOUBLES: Final[dict[str, Callable[[Any, Any], bool]]] = {
    **_OF_WHOLE_NUMBERS,
    ">": lambda value, constant: not value <= constant,  # NaN is above every number
    ">=": lambda value, constant: not value < constant,
}
"""Functions for comparing doubles with a constant."""


class Compiler(Generic[Source]):
    """Compiles syntax trees; ``reader(name)`` returns the function that reads a property from a message."""

    def __init__(self, reader: Callable[[str], Callable[[Source], str | None]]) -> None:
        self._reader = reader

    def condition(self, node: Expression) -> Callable[[Source], Truth]:
        """Compile a condition to a function that returns TRUE, FALSE or null for a message.

        The function raises :class:`EvaluationError` if the message's values cannot be compared.
        """
        match node:
            case And():
                return _conjunction([self.condition(operand) for operand in node.operands])
            case Or():
                return _disjunction([self.condition(operand) for operand in node.operands])
            case Not():
                return self._not(node)
            case Equal():
                return self._simple("=", node.left, node.right) or self._equal(node)
            case Ordering():
                return self._simple(node.operator, node.left, node.right) or self._ordering(node)
            case In():
                return self._in(node)
            case IsNull():
                return _is_null(self.value(node.operand))
            case BooleanCast():
                return _cast(self._reader(node.operand.name))
            case Literal():
                constant = None if node.value is None else bool(node.value)
                return lambda _: constant
            case Property() | Negate():
                raise TypeError(f"{node} is not a condition")  # the parser does not let it through
        assert_never(node)

    def value(self, node: Expression) -> Callable[[Source], Value]:
        """Compile a node to a function that returns its value for a message."""
        constant = constant_of(node)
        if constant is not None:
            value = constant.value
            return lambda _: value
        if isinstance(node, Property):
            return self._reader(node.name)
        if isinstance(node, Negate):
            inner = self.value(node.operand)

            def negated(source: Source) -> Value:
                value = inner(source)  # this may raise
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                return -value if is_number else None  # type: ignore[operator]

            return negated
        return self.condition(node)

    # --- a property and a constant: nearly all selectors in practice ------------------------
    def _simple(self, symbol: str, left: Expression, right: Expression) -> Callable[[Source], Truth] | None:
        constant = constant_of(right)
        if not isinstance(left, Property) or constant is None:
            return None
        read = self._reader(left.name)
        wanted = constant.value
        if constant.kind is Kind.STRING:
            holds = _OF_WHOLE_NUMBERS[symbol]

            def of_text(source: Source) -> Truth:
                text = read(source)
                return None if text is None else holds(text, wanted)

            return of_text
        convert = PARSERS.get(constant.kind)
        if convert is None:
            return None
        holds = (_OF_DOUBLES if constant.kind is Kind.DOUBLE else _OF_WHOLE_NUMBERS)[symbol]

        def of_number(source: Source) -> Truth:
            text = read(source)
            return None if text is None else holds(convert(text), wanted)

        return of_number

    def _in(self, node: In) -> Callable[[Source], Truth]:
        read = self._reader(node.operand.name)
        values = node.values
        found = not node.negated

        def among(source: Source) -> Truth:
            text = read(source)
            return None if text is None else (text in values) is found

        return among

    # --- the general case ----------------------------------------------------------------------
    def _not(self, node: Not) -> Callable[[Source], Truth]:
        operand = node.operand
        if isinstance(operand, Equal):
            simple = self._simple("<>", operand.left, operand.right)
            if simple is not None:
                return simple
        inner = self.condition(operand)

        def inverted(source: Source) -> Truth:
            truth = inner(source)
            return None if truth is None else not truth

        return inverted

    def _equal(self, node: Equal) -> Callable[[Source], Truth]:
        left, right = self.value(node.left), self.value(node.right)
        compare = _comparison(kind_of(node.left), kind_of(node.right))

        def equal(source: Source) -> Truth:
            first, second = left(source), right(source)
            if first is None:
                return True if second is None else None
            return False if second is None else compare(first, second) == 0

        return equal

    def _ordering(self, node: Ordering) -> Callable[[Source], Truth]:
        left, right = self.value(node.left), self.value(node.right)
        holds = _OF_SIGN[node.operator]
        kinds = kind_of(node.left), kind_of(node.right)
        compare = _compare_as_doubles if kinds == (Kind.STRING, Kind.STRING) else _comparison(*kinds)

        def ordered(source: Source) -> Truth:
            first = left(source)
            if first is None:
                return None
            second = right(source)
            return None if second is None else holds(compare(first, second))

        return ordered


def _conjunction(operands: list[Callable[[Source], Truth]]) -> Callable[[Source], Truth]:
    def all_of(source: Source) -> Truth:
        result: Truth = True
        for operand in operands:
            truth = operand(source)
            if truth is False:
                return False
            if truth is None:
                result = None
        return result

    return all_of


def _disjunction(operands: list[Callable[[Source], Truth]]) -> Callable[[Source], Truth]:
    def any_of(source: Source) -> Truth:
        result: Truth = False
        for operand in operands:
            truth = operand(source)
            if truth:
                return True
            if truth is None:
                result = None
        return result

    return any_of


def _is_null(value: Callable[[Source], Value]) -> Callable[[Source], Truth]:
    return lambda source: value(source) is None


def _cast(read: Callable[[Source], str | None]) -> Callable[[Source], Truth]:
    return lambda source: None if read(source) is None else False


# --- comparisons of two values that are not null -------------------------------------------------
def _comparison(left: Kind, right: Kind) -> Callable[[Any, Any], int]:
    """Return a function that converts two values and compares them like Java's ``compareTo``."""
    if left is right and left not in NUMBERS:
        return _compare_alike
    if left is Kind.BOOLEAN and right is Kind.STRING:
        return _refuse
    if left is Kind.STRING and right in PARSERS:
        of_right, convert_left = _comparison(right, right), PARSERS[right]
        return lambda first, second: of_right(convert_left(first), second)
    if right is Kind.STRING and left in PARSERS:
        of_left, convert_right = _comparison(left, left), PARSERS[left]
        return lambda first, second: of_left(first, convert_right(second))
    if left in NUMBERS and right in NUMBERS:
        return lambda first, second: compare_numbers(first, left, second, right)
    return _never_equal


def _compare_alike(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def _compare_as_doubles(left: Any, right: Any) -> int:
    return compare_doubles(to_double(left), to_double(right))


def _never_equal(_left: Any, _right: Any) -> int:
    """Return -1, because Java's filter does not convert these values and never treats them as equal."""
    return -1


def _refuse(left: Any, right: Any) -> int:
    """Raise the error for a comparison that fails with a ClassCastException in RocketMQ."""
    raise EvaluationError(f"the value {left} on the left side of = cannot be compared with the string {right!r}")
