"""Quotas count what goes back and what ends as what it is; denials, waits and the audit log are metrics."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tests.broker.access.test_access import ACCOUNTS, OPERATORS, ask, make_topics, send
from tests.broker.access.test_quotas import HERE, later, put, quota_of
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.heartbeats import beat, heartbeat
from tests.broker.transacting import COMMIT, TOPIC, end, send_half
from tests.broker.wire import Connect, Wire
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.message.ids import decode_offset_msg_id
from cometmq.remoting.admin_headers import PutQuotaRequestHeader
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import ConsumerSendMsgBackRequestHeader
from cometmq.testing import VirtualClock


def value(broker: Broker, name: str, **labels: str) -> float:
    """The sum over the samples of a metric with these labels."""
    assert broker.monitor is not None
    text = b"".join(broker.monitor.pieces()).decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


async def send_back(wire: Wire, offset: int, group: str) -> RemotingCommand:
    header = ConsumerSendMsgBackRequestHeader(offset=offset, group=group, delay_level=1)
    return await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)


async def test_a_message_that_goes_back_counts_as_one_that_its_group_sends(
    connect: Connect, clock: VirtualClock
) -> None:
    wire = await connect()
    await beat(wire, heartbeat("one", "T", group="failing"))
    offsets = [decode_offset_msg_id((await wire.send("T")).ext_fields["msgId"])[2] for _ in range(3)]
    assert (await put(wire, "group:failing", messages_in=1)).code == 0
    assert (await later(clock, send_back(wire, offsets[0], "failing"))).code == 0
    before = clock.monotonic()
    first = wire.command(RequestCode.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackRequestHeader(offsets[1], "failing", 1))
    wire.post(first)
    denied = await later(clock, send_back(wire, offsets[2], "failing"))
    assert denied.code == ResponseCode.SYSTEM_BUSY
    assert "1 sent messages per second" in (denied.remark or "")
    assert (await later(clock, wire.answer(first.opaque))).code == 0
    assert clock.monotonic() > before, "it waited"


async def test_the_end_of_a_transaction_costs_bytes_and_is_never_denied(connect: Connect, clock: VirtualClock) -> None:
    wire = await connect()
    half = await send_half(wire, "k")
    await put(wire, HERE, messages_in=0, bytes_in=0)
    assert (await later(clock, wire.send("T"))).code == ResponseCode.SYSTEM_BUSY
    assert (await later(clock, end(wire, half, COMMIT))).code == 0
    assert (await quota_of(wire, HERE))["denials"] == 1
    assert (await later(clock, wire.pull(TOPIC))).code == 0


async def test_denials_waits_and_the_audit_log_are_metrics(
    start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path, clock: VirtualClock
) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    (tmp_path / "plain_acl.yml").chmod(0o600)
    broker = await start_broker(
        acl_enable=True,
        acl_path=str(tmp_path),
        audit_log_enable=True,
        metrics_exporter_type="PROM",
        metrics_prom_exporter_port=0,
    )
    wire = await connect_to(broker)
    await make_topics(wire, "Orders")
    assert (await send(wire, None, "Orders")).code != 0
    assert value(broker, "cometmq_access_denied_total") == 1
    quota = PutQuotaRequestHeader("account:operators", messages_in=2)
    assert (await ask(wire, OPERATORS, RequestCode.PUT_QUOTA, quota)).code == 0
    codes = [(await later(clock, send(wire, OPERATORS, "Orders"))).code for _ in range(3)]
    assert codes == [0, 0, 0]
    assert value(broker, "cometmq_quota_delayed_total", subject="account", limit="messagesIn") == 1
    none = PutQuotaRequestHeader("account:operators", messages_in=0)
    assert (await ask(wire, OPERATORS, RequestCode.PUT_QUOTA, none)).code == 0
    assert (await later(clock, send(wire, OPERATORS, "Orders"))).code == ResponseCode.SYSTEM_BUSY
    assert value(broker, "cometmq_quota_denied_total", subject="account", limit="messagesIn") == 1
    await until(lambda: value(broker, "cometmq_audit_waiting_bytes") == 0)
    assert broker.audit is not None
    written = value(broker, "cometmq_audit_entries_total", outcome="written")
    assert written == len((tmp_path / "store" / "audit" / "audit.log").read_bytes().splitlines())
    assert value(broker, "cometmq_audit_entries_total", outcome="lost") == 0
