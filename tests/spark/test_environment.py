"""The session that a job runs in."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.spark.environment import driver_session


@pytest.mark.spark
def test_a_job_takes_the_session_that_it_is_given(spark: Any) -> None:
    assert driver_session(spark, "local[1]", "job") is spark
