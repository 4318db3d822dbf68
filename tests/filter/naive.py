"""The rules of selectors once more, slowly and plainly: a second opinion for the property tests.

It walks the tree anew for every message and follows the tables of RocketMQ's documentation and behaviour;
values carry their Java class beside them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction

from cometmq.filter.expressions import (
    And,
    BooleanCast,
    Equal,
    Expression,
    In,
    IsNull,
    Literal,
    Negate,
    Not,
    Or,
    Property,
)

Typed = tuple[str, object] | None
"""Java's class and the value; None is null."""


class RaisedError(Exception):
    """Java would throw."""


def truth(node: Expression, properties: Mapping[str, str]) -> bool | None:
    value = evaluate(node, properties)
    if value is None:
        return None
    assert value[0] == "Boolean"
    return bool(value[1])


def evaluate(node: Expression, properties: Mapping[str, str]) -> Typed:
    if isinstance(node, Literal):
        return None if node.value is None else (node.kind.value, node.value)
    if isinstance(node, Property):
        return ("String", properties[node.name]) if node.name in properties else None
    if isinstance(node, Negate):
        value = evaluate(node.operand, properties)
        return (value[0], -value[1]) if value and isinstance(value[1], int | float) and value[0] != "Boolean" else None
    if isinstance(node, BooleanCast):
        return None if evaluate(node.operand, properties) is None else ("Boolean", False)
    if isinstance(node, Not):
        inner = truth(node.operand, properties)
        return None if inner is None else ("Boolean", not inner)
    if isinstance(node, And | Or):
        decides = isinstance(node, Or)
        seen = []
        for operand in node.operands:
            seen.append(truth(operand, properties))
            if seen[-1] is decides:
                return ("Boolean", decides)
        return None if None in seen else ("Boolean", not decides)
    if isinstance(node, IsNull):
        return ("Boolean", evaluate(node.operand, properties) is None)
    if isinstance(node, In):
        value = evaluate(node.operand, properties)
        return None if value is None else ("Boolean", (value[1] in node.values) != node.negated)
    if isinstance(node, Equal):
        left, right = evaluate(node.left, properties), evaluate(node.right, properties)
        if left is None or right is None:
            return ("Boolean", left is right) if left is right or left else None
        return ("Boolean", compare(left, right) == 0)
    left = evaluate(node.left, properties)
    right = evaluate(node.right, properties) if left else None
    if left is None or right is None:
        return None
    if left[0] == right[0] == "String":
        left, right = converted(left, "Double"), converted(right, "Double")
    sign = compare(left, right)
    return ("Boolean", {">": sign > 0, ">=": sign >= 0, "<": sign < 0, "<=": sign <= 0}[node.operator])


def compare(left: tuple[str, object], right: tuple[str, object]) -> int:
    """Java's compareTo after the conversions of ComparisonExpression."""
    classes = {left[0], right[0]}
    if len(classes) == 2:
        if "String" in classes:
            if left[0] == "Boolean":
                raise RaisedError("ClassCastException")
            other = (classes - {"String"}).pop()
            left, right = converted(left, other), converted(right, other)
        elif "Boolean" in classes:
            return -1
        elif "Double" in classes:
            left, right = widened(left), widened(right)
    one, two = sort_key(left[1]), sort_key(right[1])
    return (one > two) - (one < two)


def widened(value: tuple[str, object]) -> tuple[str, object]:
    assert isinstance(value[1], int | float)
    return ("Double", float(value[1]))


def sort_key(value: object) -> tuple[object, ...]:
    if isinstance(value, float):
        if math.isnan(value):
            return (2, 0, 0)
        if math.isinf(value):
            return (1 if value > 0 else -1, 0, 0)
        return (0, Fraction(value), math.copysign(1, value))
    return (value,)


def converted(value: tuple[str, object], wanted: str) -> tuple[str, object]:
    kind, text = value
    if kind != "String":
        return value
    assert isinstance(text, str)
    if wanted == "Boolean":
        return (wanted, re.fullmatch("true", text, re.IGNORECASE | re.ASCII) is not None)
    if wanted in ("Integer", "Long"):
        bits = 32 if wanted == "Integer" else 64
        if not re.fullmatch(r"[+-]?\d+", text) or any(ord(character) > 0xFFFF for character in text):
            raise RaisedError(text)
        number = int(text)
        if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
            raise RaisedError(text)
        return (wanted, number)
    text = re.sub(r"\A[\x00-\x20]+|[\x00-\x20]+\Z", "", text)
    if re.fullmatch(r"[+-]?(NaN|Infinity)", text):
        return (wanted, float(text))
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?", text, re.ASCII):
        return (wanted, float(text.rstrip("fFdD")))
    if re.fullmatch(r"[+-]?0[xX]([0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?\d+[fFdD]?", text, re.ASCII):
        try:
            return (wanted, float.fromhex(re.sub(r"[fFdD]\Z", "", text)))
        except OverflowError:
            return (wanted, -math.inf if text.startswith("-") else math.inf)
    raise RaisedError(text)
