"""The fixtures of FastStream's test cases."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from unittest.mock import AsyncMock, MagicMock
from uuid import uuid4

import pytest
from faststream._internal.context import ContextRepo


@pytest.fixture
def queue() -> str:
    return str(uuid4())


@pytest.fixture
def event() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def event2() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def event3() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def mock() -> Iterator[MagicMock]:
    made = MagicMock()
    yield made
    made.reset_mock()


@pytest.fixture
def mock2() -> Iterator[MagicMock]:
    made = MagicMock()
    yield made
    made.reset_mock()


@pytest.fixture
def async_mock() -> AsyncMock:
    return AsyncMock()


@pytest.fixture
def context() -> ContextRepo:
    return ContextRepo()
