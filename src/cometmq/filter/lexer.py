"""Tokens of a selector, one at a time (``SelectorParser.jj``).

The longest token wins, as in JavaCC. Tokens are made on demand, because RocketMQ never looks at what
stands behind a complete expression, except for the one token that ends it.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cometmq.filter.errors import FilterError

END: Final = "END"
STRING: Final = "STRING"
INTEGER: Final = "INTEGER"
FLOAT: Final = "FLOAT"
NAME: Final = "NAME"
KEYWORDS: Final = frozenset(["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"])

_SKIPPED: Final = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*(?:\r\n|\n|\r)|/\*(?s:.*?)\*/)*")
"""A ``--`` comment ends with its line; without a line end it is two minus signs, as in RocketMQ."""
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
    '"': "strings stand in single quotes",
    "&": "write AND",
    "|": "write OR",
    "/": "close the comment with */; there is no division",
    "*": "there is no arithmetic in selectors",
    "%": "there is no arithmetic in selectors",
    ";": "an expression has no terminator",
    ".": "names of properties consist of A-Z a-z 0-9 _ $",
}


class Token(NamedTuple):
    """``kind`` is one of the constants above, a keyword in capitals, or the symbol itself."""

    kind: str
    text: str
    at: int
    """Index of its first character."""

    def __str__(self) -> str:
        return "the end of the expression" if self.kind == END else f"{self.text[:40]!r}"


def next_token(text: str, at: int) -> tuple[Token, int]:
    """The token at or after index ``at``, and the index behind it.

    :raises FilterError: no token begins there.
    """
    skipped = _SKIPPED.match(text, at)
    assert skipped is not None  # it matches nothing at least
    at = skipped.end()
    if at == len(text):
        return Token(END, "", at), at
    found = _TOKEN.match(text, at)
    if found is None:
        character = text[at]
        step = _NEXT_STEPS.get(character)
        if character == "'":
            raise FilterError("a string is not closed", at + 1, next_step=step)
        raise FilterError(f"{character!r} is not part of the selector language", at + 1, next_step=step)
    kind = found.lastgroup
    word = found.group()
    assert kind is not None
    if kind == "SYMBOL":
        kind = word
    elif kind == NAME and word.upper() in KEYWORDS:
        kind = word.upper()
    return Token(kind, word, at), found.end()
