"""The session that a job runs in."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cometmq.spark.environment import ConnectSessionError, driver_session


def test_a_job_refuses_a_session_of_spark_connect_and_says_what_works() -> None:
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(ConnectSessionError, match="driver's process") as refused:
        driver_session(cast(Any, connect), "local[2]", "job")
    assert "spark-submit" in str(refused.value)


@pytest.mark.spark
def test_a_job_takes_the_session_that_it_is_given(spark: Any) -> None:
    assert driver_session(spark, "local[1]", "job") is spark
