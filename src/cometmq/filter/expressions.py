"""The syntax tree of a selector."""

from __future__ import annotations

import enum

import msgspec


class Kind(enum.Enum):
    """The Java class of a node's non-null value; all properties are strings."""

    STRING = "String"
    INTEGER = "Integer"
    LONG = "Long"
    DOUBLE = "Double"
    BOOLEAN = "Boolean"
    NULL = "null"


NUMBERS = frozenset([Kind.INTEGER, Kind.LONG, Kind.DOUBLE])

Value = str | int | float | bool | None


class Literal(msgspec.Struct, frozen=True):
    """A constant: a string, a number or a boolean."""

    kind: Kind
    value: Value


class Property(msgspec.Struct, frozen=True):
    """The value of a message property, or null if the message does not have the property."""

    name: str


class Negate(msgspec.Struct, frozen=True):
    """Unary minus; the result is null if the operand is not a number."""

    operand: Expression


class BooleanCast(msgspec.Struct, frozen=True):
    """A property used as a condition; its value is null or FALSE, but never TRUE."""

    operand: Property


class Not(msgspec.Struct, frozen=True):
    """Logical NOT; null remains null."""

    operand: Expression


class And(msgspec.Struct, frozen=True):
    """Logical AND of two or more conditions, evaluated from left to right until one is FALSE."""

    operands: tuple[Expression, ...]


class Or(msgspec.Struct, frozen=True):
    """Logical OR of two or more conditions, evaluated from left to right until one is TRUE."""

    operands: tuple[Expression, ...]


class Equal(msgspec.Struct, frozen=True):
    """The comparison ``=``. ``a <> b`` is parsed as a :class:`Not` that contains this node."""

    left: Expression
    right: Expression


class IsNull(msgspec.Struct, frozen=True):
    """The test ``IS NULL``; ``IS NOT NULL`` is parsed as a :class:`Not` that contains this node."""

    operand: Expression


class Ordering(msgspec.Struct, frozen=True):
    """A comparison with ``>``, ``>=``, ``<`` or ``<=``; BETWEEN becomes two comparisons."""

    operator: str
    left: Expression
    right: Expression


class In(msgspec.Struct, frozen=True):
    """The test ``IN`` or ``NOT IN`` with a list of strings."""

    operand: Property
    values: frozenset[str]
    negated: bool


Condition = BooleanCast | Not | And | Or | Equal | IsNull | Ordering | In
Expression = Literal | Property | Negate | Condition


def kind_of(node: Expression) -> Kind:
    """Return the Java class of a node's values."""
    if isinstance(node, Literal):
        return node.kind
    if isinstance(node, Property):
        return Kind.STRING
    if isinstance(node, Negate):
        operand = kind_of(node.operand)
        return operand if operand in NUMBERS else Kind.NULL
    return Kind.BOOLEAN


def is_condition(node: Expression) -> bool:
    """Return whether a node can be a condition (``BooleanExpression``)."""
    if isinstance(node, Literal):
        return node.kind in (Kind.BOOLEAN, Kind.NULL)
    return not isinstance(node, Property | Negate)


def constant_of(node: Expression) -> Literal | None:
    """Return the value of a constant, including its sign, or ``None`` for any other node."""
    if isinstance(node, Literal):
        return node
    if isinstance(node, Negate):
        operand = constant_of(node.operand)
        if operand is not None:
            if operand.kind in NUMBERS and isinstance(operand.value, int | float):
                return Literal(operand.kind, -operand.value)
            return Literal(Kind.NULL, None)
    return None


def weight(node: Expression) -> int:
    """Return the number of nodes that read a property."""
    match node:
        case And() | Or():
            return sum(weight(operand) for operand in node.operands)
        case Not():
            return weight(node.operand)
        case _:
            return 1
