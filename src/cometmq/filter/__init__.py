"""SQL92 message selectors, compatible with the filter module of Apache RocketMQ 4.9.

``parse_selector(text)`` returns a :class:`~cometmq.filter.selector.Selector`, which has predicates for a map of
properties and for a stored record.
"""

from __future__ import annotations

from cometmq.filter.errors import EvaluationError, FilterError
from cometmq.filter.selector import SQL92, Selector, parse_selector

__all__ = ["SQL92", "EvaluationError", "FilterError", "Selector", "parse_selector"]
