"""Descriptors: a store with many queues needs few of them."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest
from tests.store.conftest import StoreBench, put

from cometmq.store.message_store import GetMessageStatus

_TOPICS = 300


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Leave 40 descriptors more than are open: as 1,024 are for 8,000 topics."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/dev/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 41, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_descriptors")
def test_forty_descriptors_are_enough_for_hundreds_of_topics(bench: StoreBench) -> None:
    store = bench.open()
    for number in range(_TOPICS):
        put(store, f"T{number}", 0, b"%d" % number)
    store.batch.commit()
    store.close_now()
    store = bench.open()
    for _ in range(2):
        for number in range(_TOPICS):
            found = store.get_message(store.queue(f"T{number}", 0), 0, 1)
            assert found.status is GetMessageStatus.FOUND
        for number in range(_TOPICS):
            put(store, f"T{number}", 0, b"%d" % number)
        store.batch.commit()


def test_a_closed_store_keeps_no_descriptor_though_its_objects_live_on(bench: StoreBench) -> None:
    store = bench.open()
    before = len(os.listdir("/dev/fd"))
    for number in range(20):
        put(store, f"T{number}", 0, b"x")
    store.batch.commit()
    found = store.get_message(store.queue("T0", 0), 0, 1)
    store.close_now()
    assert found.status is GetMessageStatus.FOUND
    assert len(os.listdir("/dev/fd")) < before
