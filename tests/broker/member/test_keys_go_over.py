"""Keys that were set at run time are those of the set: they go over, and outlive the master and a restart."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from tests.broker.member.sets import MemberSet, member_set, until
from tests.broker.wire import Wire

from cometmq.broker.config import load_broker_config
from cometmq.broker.member.set_member import SetMember
from cometmq.broker.replication.copies.set_copy import of_epoch
from cometmq.broker.replication.frames import ReplicationError
from cometmq.broker.tables.set_keys import OWN_KEYS, SetKeys
from cometmq.client.admin import Admin
from cometmq.options import ConfigError, options_of
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand

pytestmark = pytest.mark.usefixtures("lines")


async def put(member: SetMember, keys: str) -> RemotingCommand:
    wire = Wire(*await asyncio.open_connection("127.0.0.1", member.broker.server.port))
    answer = await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=keys.encode())
    await wire.close()
    return answer


def master(members: MemberSet) -> SetMember:
    found = members.master
    assert found is not None
    return found


def other(members: MemberSet) -> SetMember:
    return next(one for one in members.members.values() if not one.is_serving)


async def test_a_key_that_was_set_holds_at_the_next_master_and_after_its_restart(pair: MemberSet) -> None:
    """The answer comes once the other member has it, so a kill at once loses nothing."""
    first = master(pair)
    answer = await put(first, "transactionCheckMax=7\nlogLevel=DEBUG")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    name = other(pair).machine.me.name
    await pair.kill(first.machine.me.name)
    await until(lambda: pair.master is not None)
    assert master(pair).machine.me.name == name
    assert master(pair).config.transaction_check_max == 7
    assert master(pair).config.log_level == "", "this key belongs to one machine"
    await pair.stop(name)
    again = await pair.start(name)
    await until(lambda: pair.master is again)
    assert again.config.transaction_check_max == 7
    async with Admin(instance=pair.instance()) as admin:
        assert (await admin.broker_config(again.address))["transactionCheckMax"] == "7"


async def test_a_member_that_was_down_takes_the_keys_of_the_master(pair: MemberSet) -> None:
    down = other(pair).machine.me.name
    assert (await put(master(pair), "transactionCheckMax=7\nrejectTransactionMessage=true")).code == 0
    await pair.kill(down)
    assert (await put(master(pair), "transactionCheckMax=8")).code == 0
    again = await pair.start(down)
    assert again.config.transaction_check_max == 7, "what it knew when it was killed"
    assert again.config.reject_transaction_message
    await until(lambda: again.config.transaction_check_max == 8)
    assert again.config.reject_transaction_message


async def test_the_key_of_a_master_that_nobody_has_followed_is_taken_back(pair: MemberSet) -> None:
    """It returns as a slave, with the value of its broker.conf, and not with its own later one."""
    old = master(pair)
    name = old.machine.me.name
    pair.engines[name].is_cut = True
    await old.broker.cut_off()
    keys = SetKeys(old.config)
    keys.save({"transactionCheckMax": "9"})  # as the request does, whose answer is an error
    await pair.kill(name)
    await until(lambda: pair.master is not None)
    again = await pair.start(name)
    assert again.config.transaction_check_max == 9
    await until(lambda: again.config.transaction_check_max == 15)
    assert SetKeys(again.config).texts == {}


async def test_a_slave_refuses_keys_of_the_set_and_accepts_those_of_its_machine(pair: MemberSet) -> None:
    slave = other(pair)
    refused = await put(slave, "transactionCheckMax=7")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "this broker is a slave of its set, and copies the master's keys" in (refused.remark or "")
    assert slave.config.transaction_check_max == 15
    assert (await put(slave, "diskMaxUsedSpaceRatio=80")).code == ResponseCode.SUCCESS
    assert slave.config.disk_max_used_space_ratio == 80
    assert master(pair).config.disk_max_used_space_ratio != 80


async def test_the_key_of_the_set_wins_over_a_later_one_in_broker_conf_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("transactionCheckMax=5\n")
    async with member_set(tmp_path, 2, configStorePath=str(file), transactionCheckMax="5") as members:
        assert (await put(master(members), "transactionCheckMax=7\nlogLevel=INFO")).code == 0
        assert load_broker_config(file)[0].transaction_check_max == 5, "broker.conf has its own value"
        assert load_broker_config(file)[0].log_level == "INFO", "that of one machine goes to its file"
        down = other(members).machine.me.name
        await members.stop(down)
        again = await members.start(down, transactionCheckMax="6")  # edited by hand
        assert again.config.transaction_check_max == 7
        said = "transactionCheckMax=7 of the set is used, not 6 of broker.conf"
        assert any(said in record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)


async def test_a_change_whose_keys_of_the_set_cannot_be_written_leaves_broker_conf_as_it_was(tmp_path: Path) -> None:
    """Otherwise the answer is an error, and the keys of the machine hold after its next restart."""
    file = tmp_path / "broker.conf"
    text = "# by hand\nlogLevel=WARNING\n"
    file.write_text(text)
    async with member_set(tmp_path, 2, configStorePath=str(file)) as members:
        first = master(members)
        path = SetKeys(first.config).path
        path.with_name(f"{path.name}.tmp").mkdir(parents=True)  # the new file cannot be written
        for before in (text, None):
            if before is None:
                file.unlink()
            answer = await put(first, "transactionCheckMax=7\nlogLevel=DEBUG")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "cannot write the change" in (answer.remark or "")
            assert (file.read_text() if file.exists() else None) == before
        assert (first.config.transaction_check_max, first.config.log_level) == (15, "")


def test_only_keys_of_the_set_are_taken_over(tmp_path: Path) -> None:
    config, _ = load_broker_config(None, store_path_root_dir=str(tmp_path))
    keys = SetKeys(config)
    for text in ('{"listenPort":"1"}', '{"brokerIP1":"x"}', '{"storePathRootDir":"/"}', '{"logLevel":"DEBUG"}'):
        with pytest.raises(ConfigError, match="belong to one machine"):
            keys.decoded(text.encode())
    for data in (b"[]", b"\xff", b'{"a":1}', b'{"a":"' + b"x" * 70_000 + b'"}'):
        with pytest.raises(ConfigError, match="cannot be read"):
            keys.decoded(data)
    with_later = keys.decoded(b'{"keyOfALaterVersion":"1","transactionCheckMax":"0","brokerPermission":"4"}')
    found = keys.into(config, with_later)
    assert found.broker_permission == 4
    assert found.transaction_check_max == config.transaction_check_max, "a value that is not allowed has no effect"


def test_a_damaged_file_is_replaced_by_the_one_before(tmp_path: Path) -> None:
    config, _ = load_broker_config(None, store_path_root_dir=str(tmp_path))
    for value in ("7", "8"):
        SetKeys(config).save({"transactionCheckMax": value})
    (tmp_path / "config" / "setKeys.json").write_text("{")
    assert SetKeys(config).texts == {"transactionCheckMax": "7"}
    (tmp_path / "config" / "setKeys.json.bak").write_text("{")
    assert SetKeys(config).texts == {}


def test_keys_of_one_machine_exist_and_can_change_at_run_time() -> None:
    known = options_of(type(load_broker_config(None)[0]))
    assert all(known[key].runtime for key in OWN_KEYS)


def test_an_answer_of_an_earlier_master_is_not_used() -> None:
    class Side:
        known_epoch = 2

    of_epoch(2, Side())  # type: ignore[arg-type]
    with pytest.raises(ReplicationError, match="the answer is of epoch 1, and this member is in epoch 2"):
        of_epoch(1, Side())  # type: ignore[arg-type]
