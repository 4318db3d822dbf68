"""The file of message request modes: Apache's to the byte after a stop, and complete after a kill."""

from __future__ import annotations

from pathlib import Path

from cometmq import fastjson
from cometmq.broker.pop.request_modes import MessageRequestModeManager, RequestMode, RequestModeTable
from cometmq.remoting.bodies import to_builtins
from cometmq.testing import VirtualClock


def opened(path: Path) -> MessageRequestModeManager:
    modes = MessageRequestModeManager(path, clock=VirtualClock())
    assert modes.load() == []
    return modes


def mode(topic: str, group: str, share: int) -> RequestMode:
    return RequestMode(topic=topic, consumer_group=group, mode="POP", pop_share_queue_num=share)


def test_modes_are_there_after_a_kill_and_the_file_is_whole_after_a_stop(tmp_path: Path) -> None:
    path = tmp_path / "config" / "messageRequestMode.json"
    modes = opened(path)
    for share in range(3):
        assert modes.put(mode("T", "g", share))
        assert modes.put(mode("U", f"g{share}", share))
    assert opened(path).table() == modes.table()
    modes.take_over(RequestModeTable(message_request_mode_map={"T": {"g": mode("T", "g", 7)}}))
    killed = opened(path)
    assert killed.table() == modes.table()
    killed.writer.save_last()
    assert path.read_bytes() == fastjson.dumps_pretty(to_builtins(modes.table()))
    assert not list((tmp_path / "comet" / "tables").iterdir())
    killed.writer.save_last()
    assert opened(path).get("T", "g") == mode("T", "g", 7)
