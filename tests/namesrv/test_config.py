"""The nameserver's configuration: from a file, and changed while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.helpers.apache_keys import another_value, keys_without_effect
from tests.namesrv.wire import Connect

from cometmq.apache_keys import NAMESERVER
from cometmq.namesrv.config import NamesrvConfig, PathChangeError, Settings, load_namesrv_config
from cometmq.options import ConfigError


def test_apaches_file_is_read_and_its_keys_without_effect_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("# ours\nlistenPort=19876\norderMessageEnable=true\nserverWorkerThreads=8\n")
    config, warnings = load_namesrv_config(file)
    assert (config.listen_port, config.order_message_enable) == (19876, True)
    assert config.config_store_path == str(file)
    assert warnings == [f"{file}: Apache keys that have no effect here: serverWorkerThreads"]
    assert config.unused == {"serverWorkerThreads": "8"}


def test_an_unknown_key_is_named_with_the_nearest_known_one(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPort=1\nlisenPort=2\nfrobnicate=3\n")
    config, warnings = load_namesrv_config(file)
    assert config.listen_port == 1
    assert warnings == [
        f"{file}:2: unknown key lisenPort ignored; did you mean listenPort?",
        f"{file}:3: unknown key frobnicate ignored",
    ]


@pytest.mark.parametrize("line", ["listenPort=70000", "listenPort=-1", "brokerChannelExpiredTime=ten"])
def test_a_value_with_which_no_server_starts_is_refused_with_file_line_and_range(tmp_path: Path, line: str) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text(f"\n{line}\n")
    with pytest.raises(
        ConfigError, match=rf"namesrv.conf:2: {line}: allowed is a whole number from (0 to 65535|1000 to 86400000)"
    ):
        load_namesrv_config(file)


@pytest.mark.parametrize(("line", "used"), [("listenPort=ten", "9876"), ("orderMessageEnable=yes", "false")])
def test_a_line_that_apaches_nameserver_takes_is_taken_with_a_warning(tmp_path: Path, line: str, used: str) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text(f"{line}\n")
    config, warnings = load_namesrv_config(file)
    assert (config.listen_port, config.order_message_enable) == (9876, False)
    assert [warning.rpartition("; ")[2] for warning in warnings] == [f"{used} is used"]


def test_a_file_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        load_namesrv_config(tmp_path / "nowhere.conf")


def test_a_change_is_written_back_and_keeps_the_comments(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("# port\nlistenPort=1\norderMessageEnable=false\n")
    settings = Settings(load_namesrv_config(file)[0])
    settings.update("orderMessageEnable=true\nbrokerChannelExpiredTime=60000\nlistenPort=1\nclusterTest=true\n")
    assert settings.config.order_message_enable
    assert file.read_text() == (
        "# port\nlistenPort=1\norderMessageEnable=true\nbrokerChannelExpiredTime=60000\nclusterTest=true\n"
    )
    assert "orderMessageEnable=true\n" in settings.text()
    assert "clusterTest=true\n" in settings.text()
    assert load_namesrv_config(file)[0].unused == {"clusterTest": "true"}


async def test_every_key_of_apaches_that_names_no_file_is_taken_and_said_to_have_no_effect(connect: Connect) -> None:
    wire = await connect()
    sent = {
        key: another_value(found)
        for key, found in keys_without_effect(NamesrvConfig, NAMESERVER).items()
        if found.runtime
    }
    assert sent.keys() >= {"clusterTest", "serverWorkerThreads", "enableAllTopicList", "enableControllerInNamesrv"}
    for key, value in sent.items():
        answer = await wire.call(318, body=f"{key}={value}".encode())
        assert (answer.code, answer.remark) == (0, f"Apache keys that have no effect here: {key}")
    shown = dict(line.split("=", 1) for line in (await wire.call(319)).body.decode().splitlines())
    secret = {key for key, found in keys_without_effect(NamesrvConfig, NAMESERVER).items() if found.secret}
    assert shown.items() >= {key: value for key, value in sent.items() if key not in secret}.items()
    refused = await wire.call(318, body=b"controllerStorePath=/elsewhere")
    assert (refused.code, "cannot be changed" in (refused.remark or "")) == (1, True)


def test_nothing_changes_when_one_of_the_changes_is_refused() -> None:
    settings = Settings(NamesrvConfig())
    for text in ("orderMessageEnable=true\nlistenPort=5\n", "orderMessageEnable=true\nnoSuchKey=5\n"):
        with pytest.raises(ConfigError):
            settings.update(text)
    with pytest.raises(PathChangeError, match="Can not update config path"):
        settings.update("orderMessageEnable=true\nkvConfigPath=/elsewhere\n")
    assert settings.config == NamesrvConfig()


async def test_refusals_reach_the_tool(connect: Connect) -> None:
    wire = await connect()
    answer = await wire.call(318, body=b"brokerChannelExpiredTime=1\n")
    assert answer.code == 1
    assert "from 1000 to 86400000" in (answer.remark or "")
    assert (await wire.call(318, body=b"\xff\xfe")).code == 1
