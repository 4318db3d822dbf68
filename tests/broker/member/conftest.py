"""A set of two members, and a log with what they say."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.member.sets import MemberSet, member_set, send


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> None:
    """Have the log's lines from INFO on."""
    caplog.set_level(logging.INFO)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[MemberSet]:
    """Two members that have a message."""
    async with member_set(tmp_path, 2) as members:
        await send(members, b"before")
        yield members
