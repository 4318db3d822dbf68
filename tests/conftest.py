"""Fixtures and settings of all tests."""

from __future__ import annotations

import gzip
import json
import signal
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests.interop import systems

from cometmq.core import NEXT_STEP, PATH
from cometmq.testing import VirtualClock

# How long one example takes says more of the machine than of the code; pytest's timeout bounds every test.
settings.register_profile("cometmq", deadline=None)
settings.load_profile("cometmq")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background has it ignored, and so would the commands that they interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

systems.FILES.update(systems.SMALL_FILES)

GOLDEN = Path(__file__).parent / "golden"


def pytest_report_header() -> str:
    """Tests of the compiled core are skipped without it, so say why it is not there."""
    return f"code for plain sends: {PATH}" + (f"; for the compiled core: {NEXT_STEP}" if NEXT_STEP else "")


@lru_cache(maxsize=2)
def _json_lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture
def clock() -> VirtualClock:
    """A clock that only the test moves."""
    return VirtualClock()


@pytest.fixture(scope="session")
def golden() -> Path:
    """Stores and frames recorded from real Apache RocketMQ 4.9.7; see golden/README.md."""
    return GOLDEN


@pytest.fixture(scope="session")
def golden_frames() -> list[dict[str, Any]]:
    """Recorded frames, one map each, in the order they were seen."""
    return _json_lines(GOLDEN / "wire" / "frames.jsonl.gz")


@pytest.fixture(scope="session")
def golden_admin_output() -> list[dict[str, Any]]:
    """The output of real mqadmin, one map a command."""
    return _json_lines(GOLDEN / "wire" / "admin-output.jsonl.gz")
