"""Every command of Apache's mqadmin, unmodified, against CometMQ; docs/mqadmin.md is made from the same cases."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
from tests.interop import builds
from tests.interop.clients import java_runner
from tests.interop.commands import CommandFailedError, Runner
from tests.interop.peers.mqadmin_cases import CASES, Case, page
from tests.interop.systems import Deployment, System, deploy

from cometmq.client import ConsumeFromWhere, Message, ProducerConfig, PushConfig
from cometmq.client.sync import SyncAdmin, SyncProducer, SyncPullConsumer, SyncPushConsumer

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = ("4.9.7", "5.5.0")
COMMAND_S = 120.0


class MqAdmin:
    """mqadmin of one version in one JVM; a command that ends the JVM runs in one of its own."""

    def __init__(self, version: str, home: Path) -> None:
        self._build = builds.java_client(version)
        self._open = java_runner(version)
        self._home = home
        self._runners: list[Runner] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for runner in self._runners:
            runner.close()

    def __call__(self, *words: str) -> tuple[str, str]:
        """Run a command; what it printed, and its errors."""
        if not self._runners:
            directory = self._home / str(time.monotonic_ns())
            directory.mkdir(parents=True)
            self._runners = [self._open(directory)]
        try:
            events = self._runners[0].start(["mqadmin", "--", *words]).wait(COMMAND_S)
        except (CommandFailedError, BrokenPipeError):
            self._runners.pop().close()
            return self.alone(*words)
        (output,) = [event for event in events if event["event"] == "output"]
        return output["text"], output["errors"]

    def alone(self, *words: str) -> tuple[str, str]:
        """Run a command in a JVM of its own, as the script of mqadmin does."""
        (self._home / "conf").mkdir(parents=True, exist_ok=True)
        (self._home / "conf" / "logback_tools.xml").write_text("<configuration/>")
        options = (f"-Drocketmq.home.dir={self._home}", f"-Duser.home={self._home}", *builds.QUICK_JAVA)
        main = ("-cp", f"{self._build}/classes:{self._build}/lib/*", "org.apache.rocketmq.tools.command.MQAdminStartup")
        done = subprocess.run(
            [builds.java(), *options, *main, *words],
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
            cwd=self._home,
        )
        return done.stdout, done.stderr


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, dict[str, str]]]:
    """Our nameserver and broker with a topic, a producer, a consumer and a group that has stopped."""
    directory = tmp_path_factory.mktemp("mqadmin")
    with ExitStack() as stack:
        running = deploy(System.COMETMQ, directory)
        stack.callback(running.close)
        with SyncAdmin(running.address) as admin:
            admin.create_topic("Orders", queues=4)
        traced = ProducerConfig(enable_msg_trace=True)
        producer = stack.enter_context(SyncProducer("Writers", running.address, config=traced))
        sent = [producer.send(Message("Orders", b"message-%d" % i, keys=[f"key-{i}"])) for i in range(9)]
        config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        consumer = SyncPushConsumer("Readers", lambda _: None, running.address, config=config)
        consumer.subscribe("Orders")
        stack.enter_context(consumer)
        for group in ("Idle", "Readers"):
            with SyncPullConsumer(group, running.address) as puller:
                for queue in puller.queues("Orders"):
                    puller.commit(queue, 0)
        sessions = {"topicName": "Sessions", "perm": 6, "attributes": {"+message.type": "LITE"}}
        agents = {"groupName": "Agents", "attributes": {"+lite.bind.topic": "Sessions"}}
        (directory / "topics.json").write_text(json.dumps([{"topicName": "ListA", "perm": 6}, sessions]))
        (directory / "groups.json").write_text(json.dumps([{"groupName": "ListG"}, agents]))
        yield (
            running,
            {
                "broker": running.broker.address,
                "msg_id": sent[1].msg_id,
                "offset_id": sent[1].offset_msg_id,
                "queue": str(sent[1].queue.queue_id),
                "offset": str(sent[1].queue_offset),
                "topics_file": str(directory / "topics.json"),
                "groups_file": str(directory / "groups.json"),
                "directory": str(directory),
            },
        )


@pytest.mark.parametrize("version", VERSIONS)
def test_the_cases_are_all_commands(version: str, tmp_path: Path) -> None:
    listed, _ = MqAdmin(version, tmp_path).alone()
    names = {line.split()[0] for line in listed.splitlines() if line.startswith("   ") and line.split()}
    assert names == {case.name for case in CASES if version in case.versions}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_command_does_what_the_table_says(
    busy: tuple[Deployment, dict[str, str]], version: str, tmp_path: Path
) -> None:
    running, given = busy
    cases = [case for case in CASES if version in case.versions and not case.elsewhere]
    with MqAdmin(version, tmp_path) as mqadmin:
        wrong = [
            f"{case.name}: {trouble}" for case in cases if (trouble := connection_error(mqadmin, case, running, given))
        ]
    assert wrong == []


def connection_error(mqadmin: MqAdmin, case: Case, running: Deployment, given: dict[str, str]) -> str:
    """Run a command; return how it differs from the table, or nothing."""
    text, errors = mqadmin(case.name, *case.words.format(**given).split(), "-n", running.address)
    works = case.shows and re.search(case.shows, text) is not None and "Exception" not in errors
    if case.no_meaning or case.differs:
        refused = "Exception" in text + errors or not re.search("success", text)
        return "" if refused else f"works now: {text[:300]}"
    return "" if works else f"{text[:500]} {errors[:1500]}"


def test_the_page_is_made_from_the_cases() -> None:
    assert (ROOT / "docs" / "mqadmin.md").read_text(encoding="utf-8") == page(), "run scripts/mqadmin_table"
