"""SQL92 message selectors, as Apache RocketMQ 4.9's filter module reads them (no sockets, no files).

``parse_selector(text)`` gives a :class:`~cometmq.filter.selector.Selector`, whose predicates look at a map
of properties or straight at a stored record.
"""

from __future__ import annotations

from cometmq.filter.errors import EvaluationError, FilterError
from cometmq.filter.selector import SQL92, Selector, parse_selector

__all__ = ["SQL92", "EvaluationError", "FilterError", "Selector", "parse_selector"]
