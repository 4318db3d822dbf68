"""The public names of the client load their modules when they are asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cometmq.client


@pytest.mark.parametrize("name", cometmq.client.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(cometmq.client, name) is vars(cometmq.client)[name]


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'cometmq\.client' has no attribute 'Nothing'"):
        cometmq.client.Nothing  # noqa: B018


def test_the_blocking_client_loads_no_other() -> None:
    program = (
        "import sys, cometmq.client.blocking.cluster as _; print(*(m for m in sys.modules if 'cometmq.client.' in m))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    loaded = {name.removeprefix("cometmq.client.").split(".")[0] for name in done.stdout.split()}
    assert loaded == {"blocking", "errors", "machines", "queries", "route"}
