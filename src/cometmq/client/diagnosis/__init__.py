"""Explains why a consumer group has not consumed a message."""

from __future__ import annotations

from cometmq.client.diagnosis.checks import Check, Explanation, Question, Verdict
from cometmq.client.diagnosis.why import why_not_consumed

__all__ = ["Check", "Explanation", "Question", "Verdict", "why_not_consumed"]
