"""A failure is one sentence with the next step."""

from __future__ import annotations

import pytest

from cometmq.cli.failures import FAILED, guarded
from cometmq.errors import SPARK, require


def test_a_package_of_an_extra_that_is_missing_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(lambda: require("a Spark job", SPARK, "json", "no_such_package.sql")) == FAILED
    told = "a Spark job needs no_such_package.sql, which is not installed (pip install 'cometmq[spark]')"
    assert capsys.readouterr().err == f"cometmq: {told}\n"


def test_a_module_of_ours_that_is_missing_is_a_bug(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        raise ModuleNotFoundError("No module named 'cometmq.nothing'", name="cometmq.nothing")

    assert guarded(run) == FAILED
    assert "this is a bug" in capsys.readouterr().err
