"""The configuration and the state of a running broker, as administrators see and change them."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.broker.conftest import StartBroker, small_config
from tests.broker.wire import Wire
from tests.helpers.apache_keys import another_value, keys_without_effect
from tests.helpers.waiting import until

from cometmq.apache_keys import BROKER
from cometmq.broker.config import BrokerConfig, load_broker_config
from cometmq.broker.controller import Broker
from cometmq.client.admin import Admin
from cometmq.properties_file import parse_properties
from cometmq.remoting.codes import RequestCode
from cometmq.testing import VirtualClock


async def config_of(wire: Wire) -> dict[str, str]:
    answer = await wire.call(RequestCode.GET_BROKER_CONFIG)
    assert answer.code == 0
    return {key: value for _, key, value in parse_properties(answer.body.decode(), strict=True)}


async def test_every_key_is_shown_with_its_value(broker: Broker, wire: Wire) -> None:
    shown = await config_of(wire)
    assert shown["brokerName"] == "broker-a"
    assert shown["brokerIP1"] == "127.0.0.1"
    assert shown["autoCreateTopicEnable"] == "true"
    assert shown.keys() >= {"filterServerNums", "slaveReadEnable", "useTLS"}, "mqadmin exportConfigs fails without"


async def test_the_answer_has_every_key_of_apaches_with_its_default(broker: Broker, wire: Wire) -> None:
    shown = await config_of(wire)
    lines = [json.loads(line) for line in Path(__file__).with_name("exchanges.jsonl").read_text().splitlines()]
    (text,) = [line["answer"]["body_text"] for line in lines if line["scenario"] == "admin:getBrokerConfig"]
    assert len(apaches := {key for _, key, _ in parse_properties(text)}) > 160
    assert apaches <= shown.keys()
    assert (shown["maxTransferCountOnMessageInDisk"], shown["messageStorePlugIn"]) == ("8", "")
    assert int(shown["pullMessageThreadPoolNums"]) > 16


async def test_java_reads_the_values_of_the_answer_and_tools_ours(
    start_broker: StartBroker, connect_to: Callable[[Broker], Awaitable[Wire]], tmp_path: Path
) -> None:
    root = tmp_path / "C:\\users\\消息 "
    broker = await start_broker(store_path_root_dir=f"{root}")
    wire = await connect_to(broker)
    body = (await wire.call(RequestCode.GET_BROKER_CONFIG)).body
    assert body.isascii()
    assert b"C:\\\\users\\\\\\u6d88\\u606f \n" in body, "as Properties.store writes it"
    async with Admin("127.0.0.1:1") as admin:
        assert (await admin.broker_config(broker.address))["storePathRootDir"] == str(root)


async def test_what_java_cannot_read_is_refused(broker: Broker, wire: Wire) -> None:
    answer = await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"regionId=C:\\users")
    assert (answer.code, "four hexadecimal digits" in (answer.remark or "")) == (1, True)


async def test_a_change_is_in_force_at_once_and_moves_the_version(broker: Broker, wire: Wire) -> None:
    before = (await wire.call(RequestCode.GET_BROKER_CONFIG)).ext_fields["version"]
    answer = await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"autoCreateTopicEnable=false\n")
    assert (answer.code, answer.remark) == (0, None)
    assert (await config_of(wire))["autoCreateTopicEnable"] == "false"
    assert (await wire.send("NeverMade")).code == 17
    assert (await wire.call(RequestCode.GET_BROKER_CONFIG)).ext_fields["version"] != before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("storePathRootDir=/elsewhere", "cannot be changed while running"),
        ("autoCreateTopicEnable=maybe", "true or false"),
        ("diskMaxUsedSpaceRatio=200", "from 10 to 95"),
        ("autoCreateTopicEnable=false\nbrokerName=other", "brokerName cannot be changed"),
        ("authenticationEnabled=true", "cannot be changed while running"),
        ("maxTransferCountOnMessageInDisk=many", "a whole number"),
        ("autoCreateTopicEnabled=false", "did you mean autoCreateTopicEnable"),
    ],
)
async def test_what_may_not_change_does_not_and_nothing_beside_it(
    broker: Broker, wire: Wire, text: str, words: str
) -> None:
    before = broker.config
    answer = await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())
    assert answer.code == 1
    assert words in (answer.remark or "")
    assert broker.config == before


async def test_what_a_tool_read_it_may_send_back(broker: Broker, wire: Wire) -> None:
    text = (await wire.call(RequestCode.GET_BROKER_CONFIG)).body
    assert (await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=text + b"sendMessageThreadPoolNums=7\n")).code == 0
    assert (await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"\xff\xfe")).code == 1


async def test_a_change_is_written_back_to_the_file(
    start_broker: StartBroker, tmp_path: Path, connect_to: Callable[[Broker], Awaitable[Wire]]
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# mine\nautoCreateTopicEnable=true\n")
    assert load_broker_config(file)[0].config_store_path == str(file)
    broker = await start_broker(config_store_path=str(file))
    wire = await connect_to(broker)
    assert (await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"autoCreateTopicEnable=false")).code == 0
    assert file.read_text() == "# mine\nautoCreateTopicEnable=false\n"


async def test_every_key_of_apaches_that_names_no_file_is_taken_shown_and_said_to_have_no_effect(
    broker: Broker, wire: Wire
) -> None:
    sent = {
        key: another_value(found) for key, found in keys_without_effect(BrokerConfig, BROKER).items() if found.runtime
    }
    assert len(sent) > 400
    for key, value in sent.items():
        answer = await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=f"{key}={value}".encode())
        assert (answer.code, answer.remark) == (0, f"Apache keys that have no effect here: {key}")
    shown = await config_of(wire)
    secret = {key for key, found in keys_without_effect(BrokerConfig, BROKER).items() if found.secret}
    assert {key: shown.get(key) for key in sent if key not in secret} == {
        key: value for key, value in sent.items() if key not in secret
    }
    assert not shown.keys() & secret
    again = await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"maxTransferCountOnMessageInDisk=7")
    assert (again.code, again.remark) == (0, None), "nothing changed"


async def test_a_key_without_effect_is_written_to_the_file_and_read_again(
    start_broker: StartBroker, tmp_path: Path, connect_to: Callable[[Broker], Awaitable[Wire]]
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# mine\nautoCreateTopicEnable=true\nsendMessageThreadPoolNums=1\n")
    wire = await connect_to(await start_broker(config_store_path=str(file)))
    body = b"maxTransferCountOnMessageInDisk=16\nsendMessageThreadPoolNums=7\n"
    assert (await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=body)).code == 0
    assert file.read_text() == (
        "# mine\nautoCreateTopicEnable=true\nsendMessageThreadPoolNums=7\nmaxTransferCountOnMessageInDisk=16\n"
    )
    config, _ = load_broker_config(file)
    assert config.unused == {"sendMessageThreadPoolNums": "7", "maxTransferCountOnMessageInDisk": "16"}
    refused = await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"highSpeedMode=true\nbrokerName=other")
    assert (refused.code, (await config_of(wire))["highSpeedMode"]) == (1, "false")


async def test_a_changed_permission_makes_a_new_table_for_the_nameservers(broker: Broker, wire: Wire) -> None:
    version = broker.topics.version
    assert (await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4")).code == 0
    assert broker.topics.version != version


async def test_the_runtime_information_has_the_form_that_tools_parse(broker: Broker, wire: Wire) -> None:
    await wire.send("T")
    table: dict[str, str] = json.loads((await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
    assert any(key.startswith("commitLogDiskRatio_") for key in table)
    for key in ("putTps", "getMissTps", "getTransferedTps", "getTotalTps", "getFoundTps"):
        assert len([float(part) for part in table[key].split(" ")]) == 3
    assert float(table["remainHowManyDataToFlush"].split(" ")[0]) >= 0
    assert 0 <= float(table["commitLogDiskRatio"]) <= 1
    assert int(table["commitLogMaxOffset"]) > int(table["commitLogMinOffset"]) == 0
    assert table["putMessageTimesTotal"] == "1"
    for part in table["putMessageDistributeTime"].split():
        label, _, count = part.rpartition(":")
        assert label.startswith("[")
        assert int(count) >= 0


async def test_old_files_go_when_asked_by_the_time_set_meanwhile(
    tmp_path: Path, connect_to: Callable[[Broker], Awaitable[Wire]]
) -> None:
    a_day_on = VirtualClock(time.time_ns() // 1_000_000 + 86_400_000)
    broker = Broker(small_config(tmp_path, mapped_file_size_commit_log=65_536), clock=a_day_on)
    await broker.start()
    try:
        wire = await connect_to(broker)
        for _ in range(8):
            assert (await wire.send("T", body=bytes(30_000))).code == 0
        await until(lambda: broker.store.flushed_position == broker.store.max_physical_offset, clock=a_day_on)
        assert (await wire.call(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
        assert broker.store.min_physical_offset == 0, "kept for 72 hours"
        assert (await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=1")).code == 0
        assert (await wire.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
        assert broker.store.min_physical_offset > 0
    finally:
        await broker.stop()
