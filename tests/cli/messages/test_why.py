"""cometmq message why."""

from __future__ import annotations

from tests.cli.conftest import CommandLine

from cometmq.client import Message
from cometmq.client.sync import SyncAdmin, SyncProducer


def test_the_answer_its_evidence_and_the_next_step(cometmq: CommandLine) -> None:
    with SyncAdmin(cometmq.namesrv) as admin, SyncProducer("p", cometmq.namesrv) as producer:
        admin.create_topic("why-orders", queues=1)
        admin.create_group("why-billing")
        sent = producer.send(Message("why-orders", b"x"))
    given = ("--topic", "why-orders", "--group", "why-billing")
    shown = cometmq("message", "why", sent.msg_id, *given)
    assert shown.code == 0
    answer, step = shown.err.splitlines()
    assert answer == "Group why-billing has no online members."
    assert step == "Next step: Start its consumers, and check that they use this nameserver."
    rows = {row["check"]: row for row in cometmq("message", "why", sent.msg_id, *given, "-o", "json").json()}
    assert (rows["members"]["verdict"], rows["stored"]["verdict"]) == ("cause", "ruled out")
    assert rows["stored"]["next_step"] == ""
    place = ("--queue", "0", "--offset", "0")
    assert cometmq("message", "why", *given, *place).err == shown.err
    for wrong in ((), (sent.msg_id, *place), ("--queue", "0"), ("--offset", "0")):
        assert cometmq("message", "why", *given, *wrong).code == 2
