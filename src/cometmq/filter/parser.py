"""Parses selectors, with RocketMQ's checks (``SelectorParser.jj``, ``ComparisonExpression``).

::

    or         := and {OR and}                    and := equality {AND equality}
    equality   := comparison {("=" | "<>") comparison | IS [NOT] NULL}
    comparison := unary {(">" | ">=" | "<" | "<=") unary | [NOT] BETWEEN unary AND unary | [NOT] IN "(" strings ")"}
    unary      := ("+" | "-" | NOT) unary | primary
    primary    := string | number | TRUE | FALSE | NULL | name | "(" or ")"

Text after a complete expression is ignored, except the token that ends the expression. NOT binds more tightly than a
comparison: ``NOT a = 1`` means ``(NOT a) = 1``.
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

from cometmq.filter.conversions import INT32_MAX, INT64_MAX, compare_numbers
from cometmq.filter.errors import FilterError
from cometmq.filter.expressions import (
    NUMBERS,
    And,
    BooleanCast,
    Condition,
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
    is_condition,
)
from cometmq.limits import MAX_FILTER_CHARS, MAX_FILTER_DEPTH, MAX_FILTER_TERMS

END: Final = "END"
STRING: Final = "STRING"
INTEGER: Final = "INTEGER"
FLOAT: Final = "FLOAT"
NAME: Final = "NAME"
KEYWORDS: Final = frozenset(["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"])

_SKIPPED: Final = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*(?:\r\n|\n|\r)|/\*(?s:.*?)\*/)*")
"""Pattern for blanks and comments."""
_TOKEN: Final = re.compile(
    r"(?P<FLOAT>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<INTEGER>0|[1-9][0-9]*[lL]?)"
    r"|(?P<STRING>'[^']*(?:''[^']*)*')"
    r"|(?P<NAME>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<SYMBOL><>|<=|>=|[=<>(),+-])"
)
_NEXT_STEPS: Final = {
    "!": "write <> for not equal",
    "'": "close the string with a quote; a quote inside it is written ''",
    '"': "write strings in single quotes",
    "&": "write AND",
    "|": "write OR",
    "/": "close the comment with */; selectors do not support division",
    "*": "selectors do not support arithmetic",
    "%": "selectors do not support arithmetic",
    ";": "remove the semicolon",
    ".": "property names consist of A-Z a-z 0-9 _ $",
}


class Token(NamedTuple):
    """A token, whose ``kind`` is one of the constants above, a keyword in capitals, or the symbol itself."""

    kind: str
    text: str
    at: int
    """The index of the token's first character."""

    def __str__(self) -> str:
        return "the end of the expression" if self.kind == END else f"{self.text[:40]!r}"


def next_token(text: str, at: int) -> tuple[Token, int]:
    """Return the longest token at or after index ``at`` and the index after the token.

    :raises FilterError: no token begins at ``at``.
    """
    skipped = _SKIPPED.match(text, at)
    assert skipped is not None  # it matches at least the empty string
    at = skipped.end()
    if at == len(text):
        return Token(END, "", at), at
    found = _TOKEN.match(text, at)
    if found is None:
        character = text[at]
        step = _NEXT_STEPS.get(character)
        if character == "'":
            raise FilterError("unterminated string", at + 1, next_step=step)
        raise FilterError(f"{character!r} is not part of the selector language", at + 1, next_step=step)
    kind = found.lastgroup
    word = found.group()
    assert kind is not None
    if kind == "SYMBOL":
        kind = word
    elif kind == NAME and word.upper() in KEYWORDS:
        kind = word.upper()
    return Token(kind, word, at), found.end()


_ORDERINGS: Final = frozenset([">", ">=", "<", "<="])
_WORDS: Final = {
    "TRUE": Literal(Kind.BOOLEAN, True),
    "FALSE": Literal(Kind.BOOLEAN, False),
    "NULL": Literal(Kind.NULL, None),
}
_SIMPLER: Final = "split the expression over several properties, or use IN for lists"


class Parsed(NamedTuple):
    """A selector's syntax tree, and the index of the first character after the expression."""

    expression: Expression
    end: int


class _Part(NamedTuple):
    """A node with its position and depth, used by the parser."""

    node: Expression
    at: int
    depth: int


def parse(text: str) -> Parsed:
    """Parse a selector.

    :raises FilterError: the text is empty, malformed, not a condition, or exceeds a limit.
    """
    if len(text) > MAX_FILTER_CHARS:
        raise FilterError(
            f"the expression has {len(text)} characters; at most {MAX_FILTER_CHARS} are allowed",
            MAX_FILTER_CHARS + 1,
            next_step=_SIMPLER,
        )
    return _Parser(text).selector()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._terms = 0
        self._open = 0
        self._token, self._next_at = next_token(text, 0)

    # --- tokens -------------------------------------------------------------------------------
    def _advance(self) -> Token:
        token = self._token
        self._token, self._next_at = next_token(self._text, self._next_at)
        return token

    def _accept(self, kind: str) -> bool:
        if self._token.kind != kind:
            return False
        self._advance()
        return True

    def _expect(self, kind: str, what: str) -> Token:
        if self._token.kind != kind:
            raise FilterError(f"expected {what}, not {self._token}", self._token.at + 1)
        return self._advance()

    # --- the grammar --------------------------------------------------------------------------
    def selector(self) -> Parsed:
        if self._token.kind == END:
            raise FilterError("the expression is empty", 1, next_step="write a condition such as amount > 100")
        whole = _condition(self._or())
        return Parsed(whole.node, self._token.at)

    def _or(self) -> _Part:
        left = self._and()
        if self._token.kind != "OR":
            return left
        operands = [_condition(left)]
        while self._accept("OR"):
            operands.append(_condition(self._and()))
        return self._join(Or(tuple(part.node for part in operands)), *operands)

    def _and(self) -> _Part:
        left = self._equality()
        if self._token.kind != "AND":
            return left
        operands = [_condition(left)]
        while self._accept("AND"):
            operands.append(_condition(self._equality()))
        return self._join(And(tuple(part.node for part in operands)), *operands)

    def _equality(self) -> _Part:
        left = self._comparison()
        while True:
            if self._token.kind in ("=", "<>"):
                negated = self._advance().kind == "<>"
                right = self._comparison()
                _check_equal(left, right)
                node: Condition = Equal(left.node, right.node)
                left = self._join(Not(node) if negated else node, left, right)
            elif self._accept("IS"):
                negated = self._accept("NOT")
                self._expect("NULL", "NULL")
                node = IsNull(left.node)
                left = self._join(Not(node) if negated else node, left)
            else:
                return left

    def _comparison(self) -> _Part:
        left = self._unary()
        while True:
            if self._token.kind in _ORDERINGS:
                operator = self._advance().kind
                right = self._unary()
                left = self._join(_ordering(operator, left, right), left, right)
                continue
            if self._token.kind not in ("NOT", "BETWEEN", "IN"):
                return left
            negated = self._accept("NOT")
            if self._accept("BETWEEN"):
                left = self._between(left, negated)
            else:
                self._expect("IN", "BETWEEN or IN" if negated else "IN")
                left = self._in(left, negated)

    def _between(self, value: _Part, negated: bool) -> _Part:
        low = self._unary()
        self._expect("AND", "AND")
        high = self._unary()
        if negated:
            node: Condition = Or((_ordering("<", value, low), _ordering(">", value, high)))
        else:
            node = And((_ordering(">=", value, low), _ordering("<=", value, high)))
            _check_between(low, high)
        return self._join(node, value, low, high)

    def _in(self, operand: _Part, negated: bool) -> _Part:
        self._expect("(", "'('")
        values = [self._string()]
        while self._accept(","):
            values.append(self._string())
        self._expect(")", "',' or ')'")
        if not isinstance(operand.node, Property):
            raise FilterError(
                "IN requires the name of a property on its left",
                operand.at + 1,
                next_step="write NOT between the name and IN",
            )
        return self._join(In(operand.node, frozenset(values), negated), operand)

    def _unary(self) -> _Part:
        kind = self._token.kind
        if kind not in ("+", "-", "NOT"):
            return self._primary()
        at = self._advance().at
        self._deeper(at)
        operand = self._unary()
        self._open -= 1
        if kind == "+":
            return _Part(operand.node, at, operand.depth)
        node = Negate(operand.node) if kind == "-" else Not(_condition(operand).node)
        return self._join(node, _Part(operand.node, at, operand.depth))

    def _primary(self) -> _Part:
        token = self._token
        self._terms += 1
        if self._terms > MAX_FILTER_TERMS:
            raise FilterError(
                f"the expression has more than {MAX_FILTER_TERMS} names and values", token.at + 1, next_step=_SIMPLER
            )
        if token.kind == "(":
            self._terms -= 1
            self._advance()
            self._deeper(token.at)
            inner = self._or()
            self._open -= 1
            self._expect(")", "')'")
            return inner
        if token.kind == STRING:
            return _Part(Literal(Kind.STRING, self._string()), token.at, 1)
        if token.kind in (INTEGER, FLOAT):
            node = _integer(token) if token.kind == INTEGER else _float(token)
            self._advance()
            return _Part(node, token.at, 1)
        if token.kind in _WORDS:
            self._advance()
            return _Part(_WORDS[token.kind], token.at, 1)
        name = self._expect(NAME, "a property, a value or '('")
        return _Part(Property(name.text), name.at, 1)

    def _string(self) -> str:
        token = self._expect(STRING, "a string in single quotes")
        return token.text[1:-1].replace("''", "'")

    # --- limits -------------------------------------------------------------------------------
    def _deeper(self, at: int) -> None:
        self._open += 1
        if self._open > MAX_FILTER_DEPTH:
            raise _too_deep(at)

    def _join(self, node: Expression, *parts: _Part) -> _Part:
        depth = 1 + max(part.depth for part in parts)
        if depth > MAX_FILTER_DEPTH:
            raise _too_deep(parts[0].at)
        return _Part(node, parts[0].at, depth)


# --- checks -----------------------------------------------------------------------------------
def _too_deep(at: int) -> FilterError:
    return FilterError(f"the expression is nested more than {MAX_FILTER_DEPTH} deep", at + 1, next_step=_SIMPLER)


def _condition(part: _Part) -> _Part:
    """Return the node as a condition, or raise FilterError if it is only a value."""
    if is_condition(part.node):
        return part
    if isinstance(part.node, Property):
        return _Part(BooleanCast(part.node), part.at, part.depth + 1)
    raise FilterError("a value alone is not a condition", part.at + 1, next_step="compare it with another value")


def _check_equal(left: _Part, right: _Part) -> None:
    for part in (left, right):
        if isinstance(part.node, Literal) and part.node.kind is Kind.NULL:
            raise FilterError("no value equals NULL", part.at + 1, next_step="write IS NULL or IS NOT NULL")
    if (
        isinstance(left.node, Literal)
        and isinstance(right.node, Literal)
        and left.node.kind is Kind.BOOLEAN
        and right.node.kind is not Kind.BOOLEAN
    ):
        raise FilterError("TRUE and FALSE cannot be compared with values of another type", left.at + 1)


def _ordering(operator: str, left: _Part, right: _Part) -> Ordering:
    for part in (left, right):
        if isinstance(part.node, Literal):
            fits = part.node.kind in NUMBERS
        else:
            fits = not is_condition(part.node)
        if not fits:
            raise FilterError(
                f"{operator} compares numbers only", part.at + 1, next_step="write the number without quotes"
            )
    return Ordering(operator, left.node, right.node)


def _check_between(low: _Part, high: _Part) -> None:
    """Check that BETWEEN's lower bound is not greater than its upper bound."""
    first, second = low.node, high.node
    if (
        isinstance(first, Literal)
        and isinstance(second, Literal)
        and isinstance(first.value, int | float)
        and isinstance(second.value, int | float)
        and compare_numbers(second.value, second.kind, first.value, first.kind) < 0
    ):
        raise FilterError(
            "the first value of BETWEEN is larger than the second", low.at + 1, next_step="swap the two values"
        )


def _integer(token: Token) -> Literal:
    digits = token.text.rstrip("lL")
    if len(digits) > len(str(INT64_MAX)) or int(digits) > INT64_MAX:
        raise FilterError(
            f"{token} does not fit into 64 bits",
            token.at + 1,
            next_step="write it as a floating-point number, such as 1.0E19",
        )
    value = int(digits)
    return Literal(Kind.INTEGER if value <= INT32_MAX else Kind.LONG, value)


def _float(token: Token) -> Literal:
    value = float(token.text)
    if math.isinf(value):
        raise FilterError(f"{token} is too large for a 64-bit float", token.at + 1)
    if value == 0:
        raise FilterError(
            f"{token} is not allowed: RocketMQ rejects 0.0 here", token.at + 1, next_step="write 0 without a point"
        )
    return Literal(Kind.DOUBLE, value)
