"""topic export and import: the settings of one cluster in another, shown first, and repeatable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import CommandLine

from cometmq.testing import ProcessCluster


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with ProcessCluster(data=tmp_path_factory.mktemp("other")) as running:
        yield CommandLine(running.namesrv_address)


@pytest.fixture(scope="module")
def exported(cometmq: CommandLine) -> dict[str, Any]:
    for words in (
        "topic create orders --queues 3",
        "topic create archive --queues 2 --permission r --order",
        "group create billing --max-retries 5",
        "group alter billing --no-consume -y",
        "quota set account:shop --messages-in 100 --connections 5",
        "quota set address:10.0.0.0/8 --bytes-out 5M",
    ):
        assert cometmq(*words.split()).code == 0, words
    done = cometmq("topic", "export")
    assert (done.code, done.err) == (0, "Exported: 2 topics, 1 group, 2 quotas.\n")
    document: dict[str, Any] = done.json()
    return document


def test_an_import_makes_the_settings_of_the_other_cluster_and_can_be_repeated(
    exported: dict[str, Any], other: CommandLine, tmp_path: Path
) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(exported))
    unconfirmed = other("topic", "import", str(file))
    assert unconfirmed.code == 2
    assert "group billing" in unconfirmed.out
    assert "add --yes to confirm" in unconfirmed.err
    assert "orders" not in other("topic", "list").out
    done = other("topic", "import", str(file), "--execute")
    assert done.code == 0, done.err
    assert other("topic", "export").json() == exported
    again = other("topic", "import", str(file))
    assert (again.code, again.err) == (0, "The cluster already has these settings; nothing was changed.\n")

    other("topic", "create", "only-here")
    exported["topics"][1]["write_queues"] = 1
    exported["quotas"][0]["limits"] = {"messagesIn": 50}
    changed = other("topic", "import", "-", "-y", stdin=json.dumps(exported))
    assert changed.code == 0, changed.err
    assert [line.split()[-2:] for line in changed.out.splitlines()[3:]] == [["3", "1"], ["100", "50"], ["5", "–"]]
    assert "only-here" in other("topic", "list").out, "what only the cluster has stays"


def test_what_topics_and_groups_of_rocketmq_5_have_goes_along(other: CommandLine) -> None:
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000]}}
    topic = {"name": "fifo", "read_queues": 2, "write_queues": 2, "permission": "rw"}
    topic |= {"attributes": {"message.type": "FIFO"}}
    group = {"name": "in-order", "consume_orderly": True, "consume_timeout_minutes": 5, "retry_policy": policy}
    group |= {"system_flag": 1, "attributes": {"priority.factor": "1"}}
    document = {"format": "cometmq-settings", "version": 1, "topics": [topic], "groups": [group]}
    done = other("topic", "import", "-", "-y", stdin=json.dumps(document))
    assert done.code == 0, done.err
    assert "attributes message.type=FIFO" in done.out
    exported = other("topic", "export").json()
    assert topic in exported["topics"]
    assert group in exported["groups"]
    assert "already has these settings" in other("topic", "import", "-", stdin=json.dumps(document)).err
    del topic["attributes"], group["retry_policy"]
    changed = other("topic", "import", "-", "-y", stdin=json.dumps(document))
    assert changed.code == 0, changed.err
    exported = other("topic", "export").json()
    assert topic in exported["topics"]
    assert group in exported["groups"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"topiks": []}, "there is no field 'topiks'; did you mean topics?"),
        ({"topics": [{"name": "a", "read_queue": 1, "write_queues": 1}]}, "did you mean read_queues?"),
        ({"topics": [{"name": "a b", "read_queues": 1, "write_queues": 1}]}, "topic 'a b'"),
        ({"topics": [{"name": "a", "read_queues": 1, "write_queues": -1}]}, "from 0 to 65,535"),
        ({"topics": [{"name": "a", "read_queues": 1, "write_queues": 1}] * 2}, "topic a twice"),
        ({"topics": [{"name": "a", "read_queues": "1", "write_queues": 1}]}, "Expected `int`, got `str`"),
        ({"topics": [{"name": "a", "read_queues": 1, "write_queues": 1, "brokers": ["x"]}]}, "is for broker x"),
        ({"groups": [{"name": "g", "max_retries": 5000}]}, "max_retries must be from -1"),
        ({"quotas": [{"subject": "nobody", "limits": {}}]}, "quota 'nobody'"),
        (
            {"policies": [{"user": "u", "resource": "*", "actions": ["Pub"], "decision": "Allow"}]},
            "but the servers do not use them",
        ),
        ({"version": 2}, "has version 2, but this CometMQ supports only version 1 (use the version of CometMQ that"),
        ({"format": "other"}, "is not a cometmq-settings document"),
    ],
)
def test_a_document_that_is_not_valid_changes_nothing(
    cometmq: CommandLine, change: dict[str, Any], sentence: str
) -> None:
    before = cometmq("topic", "export").out
    document = {"format": "cometmq-settings", "version": 1, "topics": [], **change}
    refused = cometmq("topic", "import", "-", "-y", stdin=json.dumps(document))
    assert refused.code == 1
    assert sentence in refused.err
    assert cometmq("topic", "export").out == before


def test_messages_are_not_hidden_unless_it_is_said(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "full", "--queues", "4")
    cometmq("produce", "full", "--count", "4", "--batch", "1")
    entry = {"name": "full", "read_queues": 2, "write_queues": 2}
    document = json.dumps({"format": "cometmq-settings", "version": 1, "topics": [entry]})
    refused = cometmq("topic", "import", "-", "-y", stdin=document)
    assert refused.code == 1
    assert "there are messages in queues 2, 3; nothing was changed" in refused.err
    assert cometmq("topic", "import", "-", "-y", "--hide-messages", stdin=document).code == 0


def test_brokers_with_different_settings_have_entries_of_their_own(tmp_path: Path) -> None:
    with ProcessCluster(2, data=tmp_path) as two:
        cometmq = CommandLine(two.namesrv_address)
        cometmq("topic", "create", "even", "--queues", "2")
        cometmq("topic", "create", "uneven", "--queues", "2")
        cometmq("topic", "alter", "uneven", "--queues", "5", "--broker", "broker-1", "-y")
        document = cometmq("topic", "export").json()
        rows = [(row["name"], row["read_queues"], row.get("brokers")) for row in document["topics"]]
        assert rows == [("even", 2, None), ("uneven", 2, ["broker-0"]), ("uneven", 5, ["broker-1"])]
        again = cometmq("topic", "import", "-", stdin=json.dumps(document))
        assert "already has these settings" in again.err
