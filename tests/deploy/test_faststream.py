"""The wheel of the provider for FastStream, alone with what it requires."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.helpers.fresh_environment import ROOT, FreshEnvironment, build_wheel


def test_the_wheel_has_its_pin_and_works_beside_that_of_cometmq(tmp_path: Path) -> None:
    pytest.importorskip("faststream", reason="faststream is not installed (--group dev)")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "made")]
    subprocess.run(words, cwd=ROOT / "integrations" / "faststream", capture_output=True, check=True)
    [wheel] = (tmp_path / "made").glob("*.whl")
    place = tmp_path / "environment"
    environment = FreshEnvironment(place, build_wheel(tmp_path), set(), ("faststream>=0.7.8,<0.8",))
    [packages] = place.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    [metadata] = packages.glob("faststream_cometmq-*.dist-info")
    required = [Requirement(text) for text in PathDistribution(metadata).requires or ()]
    assert {one.name: str(one.specifier) for one in required if one.marker is None} == {
        "cometmq": "<0.2,>=0.1",
        "faststream": "<0.8,>=0.7.8",
    }
    (tmp_path / "trial.py").write_text(TRIAL, encoding="utf-8")
    done = environment.run("-W", "error", "trial.py", place=tmp_path)
    assert done.stdout.split() == ["hello"], done.stderr


TRIAL = """
import asyncio
from faststream_cometmq import RocketMQBroker, TestRocketMQBroker

broker = RocketMQBroker()

@broker.subscriber("words")
async def show(word: str) -> None:
    print(word)

async def main():
    async with TestRocketMQBroker(broker):
        await broker.publish("hello", "words")

asyncio.run(main())
"""
