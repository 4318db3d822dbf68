"""Selectors of ours and of Apache's own filter module give the same answers, to the difference of null and FALSE."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest
from tests.filter import questions
from tests.filter.answers import answer
from tests.interop import builds
from tests.interop.conftest import unavailable

pytestmark = pytest.mark.interop

SOURCE = Path(__file__).with_name("Evaluate.java")


def apache_answers(asked: list[tuple[str, dict[str, str]]]) -> list[str]:
    """The answers of the real module, one word each, from one JVM."""
    try:
        jars = builds.apache_servers("4.9.7") / "lib"
        command = [builds.java(), "-cp", f"{jars}/*", str(SOURCE)]
    except builds.ToolMissingError as problem:
        unavailable(problem)
    lines = "".join(json.dumps({"expression": text, "properties": values}) + "\n" for text, values in asked)
    done = subprocess.run(command, input=lines.encode(), capture_output=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split()


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_answers_as_apaches_module(seed: int) -> None:
    chance = random.Random(seed)
    asked = []
    for _ in range(1_500):
        text = questions.expression(chance) if chance.random() < 0.9 else questions.junk(chance)
        asked += [(text, questions.properties(chance)) for _ in range(2)]
    theirs = apache_answers(asked)
    ours = [answer(text, values) for text, values in asked]
    different = [
        f"{text!r} {values}: Apache {their}, CometMQ {our}"
        for (text, values), their, our in zip(asked, theirs, ours, strict=True)
        if their != our
    ]
    assert not different, "\n".join([f"{len(different)} differ", *different[:20]])
    assert {"TRUE", "FALSE", "NULL", "RAISED", "REFUSED"} == set(theirs)
