"""A store with 2,000 topics goes to Apache's broker and back, stopped or killed: exactly its messages are served."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.crash.loading import send
from tests.crash.reading import read_queue
from tests.helpers.waiting import wait_for
from tests.interop.systems import Deployment, System

from cometmq import fastjson
from cometmq.remoting.admin_headers import DeleteTopicRequestHeader
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.codes import RequestCode

pytestmark = pytest.mark.interop

TOPICS = [f"Swap{number}" for number in range(2_000)]
SMALL_FILES = {"mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": str(20 * 64)}

Stored = dict[str, list[bytes]]
"""The bodies of each topic; none of one that was deleted."""


def bodies_of(address: str, topic: str) -> list[bytes]:
    return [record.body for record in read_queue(address, topic)]


def live(deployment: Deployment, stored: Stored, turn: int, *, anew: bool) -> None:
    """Everything is there; put a message into each topic, make some topics, delete some, make some of these anew."""
    address = deployment.broker.address
    for topic, bodies in stored.items():
        assert bodies_of(address, topic) == bodies, topic
    deleted = [topic for topic in TOPICS[10 * turn :: 100] if stored[topic] or not turn]
    with BlockingConnection(address, 60) as connection:
        for topic in (*stored, *(f"New{turn}-{number}" for number in range(20))):
            if topic not in stored or stored[topic] or not turn:
                stored.setdefault(topic, []).append(b"%d of %b" % (turn, topic.encode()))
                send(connection, topic, stored[topic][-1], "")
        for topic in deleted:
            header = DeleteTopicRequestHeader(topic=topic)
            assert connection.invoke(RequestCode.DELETE_TOPIC_IN_BROKER, header).code == 0
            stored[topic] = []
        for topic in deleted[::2] if anew else ():
            stored[topic] = [b"%d of a new %b" % (turn, topic.encode())]
            send(connection, topic, stored[topic][-1], "")
    for topic in deleted:  # Apache's broker has answered before the message is in its queue
        wait_for(lambda topic=topic: bodies_of(address, topic) == stored[topic], f"{topic} is made anew", 30)  # type: ignore[misc]


def is_in_file(deployment: Deployment, stored: Stored) -> bool:
    """True when ``topics.json`` has the last changes: our broker writes it a second later, the journal at once.

    Its older journals are gone then, too: killed in between, nobody knows which of two files Apache's broker read.
    """
    store = deployment.broker.directory / "store"
    if len(list((store / "comet" / "tables").glob("topics.*.journal"))) > 1:
        return False
    table = fastjson.loads((store / "config" / "topics.json").read_bytes())
    return all((topic in table["topicConfigTable"]) is bool(bodies) for topic, bodies in stored.items())


@pytest.mark.parametrize("polite", [True, False], ids=["stopped", "killed"])
def test_a_store_with_thousands_of_topics_goes_to_the_other_system_and_back(
    deploy: Callable[..., Deployment], polite: bool
) -> None:
    """When a broker was killed, Apache's puts messages of earlier lives into topics that were made anew.

    So only those are made anew then that Apache's broker does not see again.
    """
    deployment = deploy(System.COMETMQ, namesrv=System.COMETMQ, **SMALL_FILES)
    stored: Stored = {topic: [] for topic in TOPICS}
    for turn, system in enumerate((System.APACHE, System.COMETMQ, System.APACHE, System.COMETMQ)):
        live(deployment, stored, turn, anew=polite or turn == 3)
        if polite:
            deployment.broker.stop()
        else:
            wait_for(lambda: is_in_file(deployment, stored), "topics.json is written", 30)
            deployment.broker.kill()
        deployment.start_again(system)
    live(deployment, stored, 4, anew=True)
