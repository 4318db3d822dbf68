"""Kombu's own integration tests of a transport, as each of its transports takes them over; run by ``suites.py``.

Not collected by the tests of this tree: it is run beside Kombu's source distribution, whose ``t.integration.common``
it imports.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import kombu
import pytest
from t.integration.common import (
    BaseEventLoop,
    BaseExchangeTypes,
    BaseFailover,
    BaseMessage,
    BasePriority,
    BaseTimeToLive,
    BasicFunctionality,
)

URL = os.environ["KOMBU_PROOF_URL"]
SCHEME = URL.partition("://")[0]
NOBODY = f"{SCHEME}://127.0.0.1:1"
"""A port where nobody listens."""
if SCHEME == "cometmq":
    importlib.import_module("cometmq.integrations.kombu")


@pytest.fixture
def connection() -> Any:
    return kombu.Connection(URL)


@pytest.fixture
def invalid_connection() -> Any:
    return kombu.Connection(NOBODY)


@pytest.fixture
def failover_connection() -> Any:
    return kombu.Connection(f"{NOBODY};{URL}")


class test_BasicFunctionality(BasicFunctionality):  # type: ignore[misc]  # noqa: N801 - as Kombu's collection wants it
    pass


class test_ExchangeTypes(BaseExchangeTypes):  # type: ignore[misc]  # noqa: N801
    pass


class test_TimeToLive(BaseTimeToLive):  # type: ignore[misc]  # noqa: N801
    pass


class test_Priority(BasePriority):  # type: ignore[misc]  # noqa: N801
    PRIORITY_ORDER = os.environ.get("KOMBU_PROOF_PRIORITIES", "asc")


class test_Message(BaseMessage):  # type: ignore[misc]  # noqa: N801
    pass


class test_EventLoop(BaseEventLoop):  # type: ignore[misc]  # noqa: N801
    pass


class test_Failover(BaseFailover):  # type: ignore[misc]  # noqa: N801
    pass
