"""The lines that a test's own servers have logged."""

from __future__ import annotations

import pytest


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the product and the running event loop have logged.

    What the collector of garbage finds of an earlier test is logged by asyncio at any time, so it is left out.
    """
    said = [(record.name, record.getMessage()) for record in caplog.records]
    return [f"{name}: {line}" for name, line in said if name != "asyncio" or "in callback" in line]
