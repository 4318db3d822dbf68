"""Every text of the console is in every catalogue, and no catalogue has texts that nobody uses."""

from __future__ import annotations

import ast
import errno
import os
import re
from pathlib import Path
from string import Formatter

import pytest

import cometmq.console
from cometmq.client.admin.broker_health import BrokerState, check_clock, check_disk, check_retention, check_versions
from cometmq.client.admin.finding import OK
from cometmq.client.errors import RouteNotFoundError
from cometmq.console.languages import ENGLISH, LANGUAGES, catalogue, preferred, translated
from cometmq.console.languages.answers import answer_in, sentences
from cometmq.remoting.errors import RemotingConnectError
from cometmq.remoting.tls.contexts import connection_error

ROOM = Path(cometmq.console.__file__).parent
_IN_TEMPLATES = re.compile(r"""\b_\(\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")


def texts() -> set[str]:
    found = {
        ast.literal_eval(text)
        for file in ROOM.rglob("*.html")
        for text in _IN_TEMPLATES.findall(file.read_text(encoding="utf-8"))
    }
    for file in ROOM.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "t":
                assert isinstance(node.args[0], ast.Constant), f"{file.name}:{node.lineno}: the text must stand there"
                found.add(node.args[0].value)
    return found


@pytest.mark.parametrize("language", sorted(set(LANGUAGES) - {ENGLISH}))
def test_a_catalogue_has_all_texts_and_no_others_with_the_same_values(language: str) -> None:
    known = catalogue(language)
    assert sorted(texts() - known.keys()) == []
    assert sorted(known.keys() - texts()) == []
    assert [text for text, other in known.items() if _values(text) != _values(other)] == []


def _values(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def test_all_findings_about_a_broker_are_translated() -> None:
    tables: list[dict[str, str]] = [
        {},
        {"commitLogDiskRatio": "0.95", "currentTimestamp": "1"},
        {"commitLogDiskRatio": "0.8", "currentTimestamp": "9999999999999"},
    ]
    states = [BrokerState({**table, "brokerVersionDesc": f"V{at}"}, 50_000, 50_001) for at, table in enumerate(tables)]
    findings = [check("b-0", state) for check in (check_disk, check_clock) for state in states]
    config = {"fileReservedTime": "1", "messageDelayLevel": "1s 2h"}
    findings.append(check_versions(states))
    findings += [check_retention("b-0", states[0], known) for known in (config, {})]
    assert len([one for one in findings if one.state != OK]) == 9
    for one in findings:
        for text in (one.check, one.todo):
            assert answer_in("zh", text) != text, text
            assert answer_in("en", text) == text
    assert answer_in("zh", findings[0].check) == "b-0 的磁盘"


def test_an_answer_of_a_server_is_translated_with_its_reason_and_its_next_step() -> None:
    refused = OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    message, step = connection_error("a:1", refused, tls=False)
    assert answer_in("zh", f"not at a:1: {message}") == "在 a:1 没有应答：无法连接 a:1：连接被拒绝"
    error = RemotingConnectError("a:1", message, next_step=step)
    assert answer_in("zh", str(error)) == "无法连接 a:1：连接被拒绝（请检查服务器是否在运行、地址是否正确）"
    text = "could not connect to a:1 in time (try again)"
    assert answer_in("zh", text) == "未能及时连接 a:1（请重试）"
    for foreign in ("{0} on {fire}", "x" * 5_000, "disk of {what}" * 300, "", "not at " * 280):
        assert answer_in("zh", foreign) == foreign


def test_a_sentence_that_ends_like_a_shorter_one_is_translated_as_a_whole() -> None:
    found = answer_in("zh", RouteNotFoundError("never-made", "a:1 does not know it").message)
    assert found == "没有主题 never-made 的路由：a:1 没有它的信息"


def test_translated_answers_have_the_values_of_the_english_ones() -> None:
    for pattern, other in sentences("zh"):
        assert set(pattern.groupindex) == _values(other), other


def test_the_language_of_a_first_visit_is_that_of_the_browser() -> None:
    assert preferred("fr-FR,zh-CN;q=0.8,en;q=0.5") == "zh"
    assert preferred("fr") == "en"
    assert translated("zh", "Log out {name}", name="{x}") == "退出 {x}"
