"""``transactionTimeout``, as many guides write it, is Apache's ``transactionTimeOut``: one value under both names."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.conftest import ConnectTo, StartBroker

from cometmq.broker.config import BrokerConfig, load_broker_config
from cometmq.cli.failures import WrongUseError
from cometmq.cli.servers.process import parse_overrides
from cometmq.remoting.codes import RequestCode

APACHES, GUIDES = "transactionTimeOut", "transactionTimeout"


def loaded(path: Path, text: str) -> tuple[int, list[str]]:
    path.write_text(text)
    config, warnings = load_broker_config(path)
    return config.transaction_time_out, warnings


@pytest.mark.parametrize("key", [APACHES, GUIDES])
def test_a_file_may_use_either(tmp_path: Path, key: str) -> None:
    assert loaded(tmp_path / "broker.conf", f"{key}=1234\n") == (1234, [])
    assert parse_overrides(BrokerConfig, (f"{key}=1234",)) == {"transaction_time_out": 1234}


@pytest.mark.parametrize("turned", [False, True])
def test_where_a_file_has_both_apaches_own_holds(tmp_path: Path, turned: bool) -> None:
    lines = [f"{GUIDES}=1\n", f"{APACHES}=2\n"]
    path = tmp_path / "broker.conf"
    value, (warning,) = loaded(path, "".join(reversed(lines) if turned else lines))
    assert (value, warning) == (2, f"{path}:{2 if turned else 1}: {GUIDES} ignored because {APACHES} is set too")


def test_its_range_is_that_of_the_key(tmp_path: Path) -> None:
    value, (warning,) = loaded(tmp_path / "broker.conf", f"{GUIDES}=-1\n")
    assert value == 0
    assert "transactionTimeOut=-1: allowed is a whole number from 0" in warning
    with pytest.raises(WrongUseError):
        parse_overrides(BrokerConfig, (f"{GUIDES}=soon",))


@pytest.mark.parametrize("in_file", ["", f"{APACHES}=9\n", f"{GUIDES}=9\n", f"{APACHES}=9\n{GUIDES}=8\n"])
@pytest.mark.parametrize("sent", [f"{GUIDES}=77\n", f"{APACHES}=77\n", f"{GUIDES}=5\n{APACHES}=77\n"])
async def test_a_change_at_run_time_is_shown_once_and_holds_after_a_restart(
    start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path, in_file: str, sent: str
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(in_file)
    broker = await start_broker(config_store_path=str(file))
    wire = await connect_to(broker)
    answer = await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=sent.encode())
    assert (answer.code, answer.remark) == (0, None)
    assert broker.config.transaction_time_out == 77
    shown = (await wire.call(RequestCode.GET_BROKER_CONFIG)).body.decode().splitlines()
    assert [line for line in shown if line.lower().startswith("transactiontimeout")] == [f"{APACHES}=77"]
    assert load_broker_config(file)[0].transaction_time_out == 77
