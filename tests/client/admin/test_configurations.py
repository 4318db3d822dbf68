"""Answers about configurations, of our servers and of Apache's."""

from __future__ import annotations

from cometmq.broker.config import BrokerConfig
from cometmq.client.admin.topics import read_configuration
from cometmq.options import format_properties


def test_values_of_our_servers_are_unescaped() -> None:
    body = format_properties(BrokerConfig(store_path_root_dir="C:\\temp\\消息 ")).encode()
    assert read_configuration(body)["storePathRootDir"] == "C:\\temp\\消息 "


def test_values_of_apaches_servers_are_taken_as_they_are() -> None:
    body = "storePathRootDir=C:\\temp\\users\nbrokerName=消息\nmessageStorePlugIn=\nkey with=a=b \n".encode()
    assert read_configuration(body) == {
        "storePathRootDir": "C:\\temp\\users",
        "brokerName": "消息",
        "messageStorePlugIn": "",
        "key with": "a=b ",
    }
