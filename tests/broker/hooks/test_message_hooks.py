"""Hooks of a broker: what they see of requests and messages, what they may refuse, and where they come from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import StartBroker, small_config
from tests.broker.wire import Wire, send_header

from cometmq.broker.controller import Broker
from cometmq.broker.hooks.message_hooks import (
    BrokerHooks,
    ConsumeMessageContext,
    ConsumeMessageHook,
    SendMessageContext,
    SendMessageHook,
)
from cometmq.message.batch import BatchPiece, encode_batch
from cometmq.message.ids import decode_offset_msg_id
from cometmq.message.properties import MessageType
from cometmq.options import ConfigError
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_ONEWAY
from cometmq.remoting.headers import ConsumerSendMsgBackRequestHeader
from cometmq.remoting.processors import Request, Response, RpcHook, RpcRejectedError
from cometmq.testing import VirtualClock

Connect = Callable[[Broker], Awaitable[Wire]]
StartHooked = Callable[..., Awaitable[Broker]]


@pytest.fixture
async def start_hooked(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[StartHooked]:
    """Starts brokers with hooks; they are stopped at the end."""
    started: list[Broker] = []

    async def start(hooks: BrokerHooks, **options: Any) -> Broker:
        broker = Broker(small_config(tmp_path, **options), hooks=hooks, clock=clock)
        await broker.start()
        started.append(broker)
        return broker

    yield start
    for broker in started:
        await broker.stop()


class Recorder:
    """Remembers what send hooks see."""

    def __init__(self) -> None:
        self.before: list[SendMessageContext] = []
        self.after: list[SendMessageContext] = []

    @property
    def hooks(self) -> BrokerHooks:
        return BrokerHooks(send=[SendMessageHook(self._before, self._after)])

    def _before(self, context: SendMessageContext) -> None:
        context.props["number"] = len(self.before)
        self.before.append(context)

    def _after(self, context: SendMessageContext) -> None:
        assert context.props["number"] == len(self.after)
        self.after.append(context)


async def test_a_send_hook_sees_what_comes_in_and_what_became_of_it(
    start_hooked: StartHooked, connect_to: Connect
) -> None:
    seen = Recorder()
    broker = await start_hooked(seen.hooks, region_id="North")
    wire = await connect_to(broker)
    stored = await wire.send("T", b"hello", properties="UNIQ_KEY\x01K1\x02TAGS\x01A", queue_id=2)
    assert (await wire.send("bad topic", b"x")).code == ResponseCode.SYSTEM_ERROR
    ok, refused = seen.after
    assert (ok.topic, ok.queue_id, ok.body_bytes, ok.unique_key) == ("T", 2, 5, "K1")
    assert ok.properties == {"UNIQ_KEY": "K1", "TAGS": "A"}
    assert (ok.success, ok.code, ok.msg_id, ok.queue_offset) == (True, 0, stored.ext_fields["msgId"], 0)
    assert (ok.region_id, ok.broker_address, ok.batch) == ("North", broker.address, False)
    assert ok.msg_type is MessageType.NORMAL
    assert ok.born_host.startswith("127.0.0.1:")
    assert (refused.success, refused.code, refused.msg_id) == (False, 1, None)
    assert refused.error_message
    assert [context.topic for context in seen.before] == ["T", "bad topic"]


async def test_a_send_hook_sees_batches_and_oneway_sends(start_hooked: StartHooked, connect_to: Connect) -> None:
    seen = Recorder()
    wire = await connect_to(await start_hooked(seen.hooks))
    body = encode_batch([BatchPiece(0, b"1", ""), BatchPiece(0, b"22", "")])
    answer = await wire.call(RequestCode.SEND_BATCH_MESSAGE, send_header("T", batch=True), body)
    wire.post(wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"oneway", flag=FLAG_ONEWAY))
    await wire.send("T", b"last")
    batch, lost, last = seen.after
    assert (batch.batch, batch.msg_id, batch.body_bytes) == (True, answer.ext_fields["msgId"], len(body))
    assert (lost.success, lost.body_bytes) == (True, 6), "nobody waits for its answer, hooks see it all the same"
    assert last.body_bytes == 4


async def test_a_send_hook_may_refuse_but_not_break(
    start_hooked: StartHooked, connect_to: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    def quota(context: SendMessageContext) -> None:
        if context.topic == "Full":
            raise RpcRejectedError(ResponseCode.FLOW_CONTROL, "the quota of Full is used up")
        raise RuntimeError("a bad hook")

    def late(context: SendMessageContext) -> None:
        raise RpcRejectedError(ResponseCode.FLOW_CONTROL, "too late")

    broker = await start_hooked(BrokerHooks(send=[SendMessageHook(quota), SendMessageHook(after=late)]))
    wire = await connect_to(broker)
    refused = await wire.send("Full", b"x")
    assert (refused.code, refused.remark) == (ResponseCode.FLOW_CONTROL, "the quota of Full is used up")
    assert (await wire.send("Free", b"x")).code == 0
    assert broker.topics.get("Full") is None
    assert "a bad hook" in caplog.text
    assert "can no longer be refused" in caplog.text


async def test_an_rpc_hook_sees_bodies_and_its_failures_on_answers_break_nothing(
    start_hooked: StartHooked, connect_to: Connect
) -> None:
    bodies: list[bytes] = []

    def see(peer: str, request: Request[Any], body: bytes) -> None:
        bodies.append(body)

    def fail(peer: str, request: Request[Any], response: Response) -> None:
        raise RuntimeError("a bad hook")

    wire = await connect_to(await start_hooked(BrokerHooks(rpc=[RpcHook(see, fail)])))
    assert (await wire.send("T", b"hello")).code == 0
    assert bodies == [b"hello"]


async def test_a_consume_hook_sees_what_goes_out_and_what_comes_back(
    start_hooked: StartHooked, connect_to: Connect
) -> None:
    out: list[ConsumeMessageContext] = []
    back: list[ConsumeMessageContext] = []
    broker = await start_hooked(BrokerHooks(consume=[ConsumeMessageHook(out.append, back.append)]))
    wire = await connect_to(broker)
    ids = [(await wire.send("T", b"m%d" % number, queue_id=1)).ext_fields["msgId"] for number in range(3)]
    found = await wire.pull("T", queue_id=1, queue_offset=1)
    assert (await wire.pull("T", queue_id=1, queue_offset=9)).code == ResponseCode.PULL_OFFSET_MOVED
    (pulled,) = out
    assert pulled.message_ids == {ids[1]: 1, ids[2]: 2}
    assert (pulled.topic, pulled.queue_id, pulled.body_bytes) == ("T", 1, len(found.body))
    assert pulled.client_host.startswith("127.0.0.1:")
    offset = decode_offset_msg_id(ids[0])[2]
    header = ConsumerSendMsgBackRequestHeader(offset, "g", 3, origin_msg_id=ids[0], origin_topic="T")
    assert (await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == 0
    (returned,) = back
    assert (returned.consumer_group, returned.topic, returned.message_ids) == ("g", "T", {ids[0]: offset})


async def test_without_hooks_answers_take_the_short_way(broker: Broker) -> None:
    assert broker.server.path.hooks == []


# --- from installed packages ----------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution that offers two things."""
    site = tmp_path / "site"
    (site / "quota-1.0.dist-info").mkdir(parents=True)
    (site / "quota-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: quota\nVersion: 1.0\n")
    (site / "quota-1.0.dist-info" / "entry_points.txt").write_text(
        "[cometmq.hooks]\nquota = quota_hooks:hooks\nodd = quota_hooks:odd\n"
    )
    (site / "quota_hooks.py").write_text(
        "from cometmq.broker.hooks.message_hooks import BrokerHooks, SendMessageHook\n"
        "from cometmq.remoting.processors import RpcRejectedError\n"
        "def hooks(config):\n"
        "    def refuse(context):\n"
        "        raise RpcRejectedError(215, f'{config.broker_name} takes nothing')\n"
        "    return BrokerHooks(send=[SendMessageHook(refuse)])\n"
        "def odd(config):\n"
        "    return 'no hooks'\n"
    )
    monkeypatch.syspath_prepend(str(site))


@pytest.mark.usefixtures("package")
async def test_the_configuration_chooses_among_installed_hooks(start_broker: StartBroker, connect_to: Connect) -> None:
    wire = await connect_to(await start_broker(hook_names=" quota "))
    refused = await wire.send("T", b"x")
    assert (refused.code, refused.remark) == (215, "broker-a takes nothing")


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("names", "problem"),
    [("quota,missing", "no installed package has the hook missing; available: odd, quota"), ("odd", "returned str")],
)
def test_what_is_no_hook_stops_the_start(tmp_path: Path, names: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Broker(small_config(tmp_path, hook_names=names))


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", ["quota_hooks:hooks", "os:system", "quota_hooks", "../quota"])
def test_the_text_of_the_key_is_never_imported(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="no installed package has"):
        Broker(small_config(tmp_path, hook_names=name))


@pytest.mark.usefixtures("package")
async def test_installing_a_package_changes_nothing(start_broker: StartBroker) -> None:
    assert (await start_broker()).server.path.hooks == []
