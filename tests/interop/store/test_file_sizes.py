"""Files keep their sizes when a store goes from Apache's broker, whose files are small, to one of ours and back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.interop.clients import Client, Series, seen
from tests.interop.store.stored import contents
from tests.interop.systems import Deployment, System

pytestmark = pytest.mark.interop

MIB = 1 << 20
SMALL = {
    "mappedFileSizeCommitLog": str(MIB),
    "mappedFileSizeConsumeQueue": str(20 * 64),
    "maxHashSlotNum": "100",
    "maxIndexNum": "300",
}
DEFAULTS = {
    "mappedFileSizeCommitLog": str(1 << 30),
    "mappedFileSizeConsumeQueue": str(20 * 300_000),
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
}
TOPIC = "Sized"


def test_apache_goes_on_with_a_store_that_we_served_with_other_sizes(
    deploy: Callable[..., Deployment], java: Client
) -> None:
    """Apache does not start on a log file of another size than its configuration's."""
    deployment = deploy(System.APACHE, namesrv=System.APACHE, autoCreateTopicEnable="false", **SMALL)
    java.create_topic(deployment.address, deployment.broker.address, TOPIC)
    sent: list[Series] = []

    def go_on(first: int, count: int) -> None:
        series = Series(TOPIC, count, first, f"body{first}", 3_000, keys="k{i}")
        java.produce(deployment.address, series, "sync")
        sent.append(series)
        expected = sorted(message for series in sent for message in series.expected())
        assert seen(java.read_topic(deployment.address, TOPIC, len(expected))) == expected
        for at in (0, first, first + count - 1):
            (found,) = java.indexed(deployment.address, TOPIC, f"k{at}")
            assert found["keys"] == f"k{at}"

    go_on(0, 900)
    truth = contents(java, deployment.address, [TOPIC])
    for system, sizes, first, count in ((System.COMETMQ, DEFAULTS, 1_000, 10), (System.APACHE, SMALL, 2_000, 600)):
        deployment.broker.stop()
        deployment.settings |= sizes
        deployment.start_again(system)
        assert contents(java, deployment.address, [TOPIC]) == truth
        go_on(first, count)
        truth = contents(java, deployment.address, [TOPIC])
        log = deployment.broker.directory / "store" / "commitlog"
        assert {path.stat().st_size for path in log.iterdir()} == {MIB}
