"""CometMQ among Apache's own parts: mixed nameservers and brokers, and the real mqadmin commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine
from tests.helpers.waiting import wait_for
from tests.interop import builds, probe, systems
from tests.interop.clients import PATIENCE_S, Client, MqAdminFailedError, Series, seen
from tests.interop.commands import CommandFailedError
from tests.interop.conftest import unavailable
from tests.interop.systems import BOTH, CLUSTER_NAME, Deployment, System

pytestmark = pytest.mark.interop

GetClient = Callable[[str], Client]


@pytest.fixture(
    scope="module",
    params=[(System.APACHE, System.COMETMQ), (System.COMETMQ, System.APACHE)],
    ids=["our-broker-at-apaches-nameserver", "apaches-broker-at-our-nameserver"],
)
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A nameserver of one system, a broker of the other."""
    namesrv, broker = request.param
    try:
        deployment = systems.deploy(broker, tmp_path_factory.mktemp("mixed"), namesrv)
    except builds.ToolMissingError as problem:
        unavailable(problem)
    yield deployment
    deployment.close()


def test_clients_find_the_broker_of_the_other_system(mixed: Deployment, clients: GetClient, java: Client) -> None:
    topic = "AutoCreated"
    series = Series(topic, 12, tags=("t",), keys="k{i}")
    java.produce(mixed.address, series)
    (route,) = java.admin(mixed.address, "route", topic=topic)
    assert route["value"]["brokerDatas"][0]["brokerAddrs"] == {"0": mixed.broker.address}
    for name in ("java5", "go", "node", "cpp"):
        assert seen(clients(name).consume(mixed.address, topic, f"mixed-{name}", 12)) == sorted(series.expected())


def test_cluster_and_topics_are_listed_across_systems(mixed: Deployment, java: Client) -> None:
    java.create_topic(mixed.address, mixed.broker.address, "Listed", queues=3)
    listed = java.mqadmin(mixed.address, "clusterList")
    assert re.search(rf"{CLUSTER_NAME} +broker-a +0 +{mixed.broker.address} ", listed)
    assert "Listed" in java.mqadmin(mixed.address, "topicList").split()
    assert re.search(r"broker-a +\{0=.*\} +3 +3 +6", java.mqadmin(mixed.address, "topicRoute", "-l", "-t", "Listed"))


def test_our_status_and_doctor_look_at_clusters_of_either_system(mixed: Deployment) -> None:
    cometmq = CommandLine(mixed.address)
    # Apache's broker fails to tell its state in the first second, when it has no sample yet.
    wait_for(lambda: cometmq("cluster", "status").code == 0, "the broker tells its state", PATIENCE_S)
    (row,) = cometmq("cluster", "status", "-o", "json").json()
    assert (row["state"], row["address"]) == ("ok", mixed.broker.address)
    checked = cometmq("doctor", "--cluster", "-o", "json")
    assert checked.code == 0, checked.out
    states = {found["check"]: found["state"] for found in checked.json()}
    of_broker = ("broker-a answers", "clock of broker-a", "retention of broker-a", f"nameserver {mixed.address}")
    assert [states[check] for check in of_broker] == ["ok"] * 4
    (shown,) = cometmq("namesrv", "config", "get", "orderMessageEnable", "-o", "json").json()
    assert shown["value"] == "false"


@pytest.mark.parametrize("namesrv", BOTH, ids=lambda system: f"{system.value}-namesrv")
def test_a_broker_that_leaves_is_forgotten_and_comes_back(
    deploy: Callable[..., Deployment], java: Client, namesrv: System
) -> None:
    broker = System.COMETMQ if namesrv is System.APACHE else System.APACHE
    deployment = deploy(broker, namesrv=namesrv)
    java.create_topic(deployment.address, deployment.broker.address, "Comes")
    deployment.broker.stop()
    wait_forgotten(deployment)
    deployment.start_again(broker)
    assert java.admin(deployment.address, "route", topic="Comes")
    deployment.broker.kill()
    wait_forgotten(deployment)
    # Our nameserver tells of it in a field that mqadmin does not know.
    assert "broker-a" not in java.mqadmin(deployment.address, "clusterList")
    away = CommandLine(deployment.address)("cluster", "status", "-o", "json")
    assert (away.code, [row["state"].partition(" ")[0] for row in away.json()]) == (
        (1, ["away"]) if namesrv is System.COMETMQ else (0, [])
    )


def wait_forgotten(deployment: Deployment) -> None:
    """Wait until the nameserver does not list the broker any more."""
    wait_for(
        lambda: not probe.broker_registered(deployment.address, deployment.broker.address),
        "the nameserver has forgotten the broker",
        PATIENCE_S,
    )


def test_brokers_of_both_systems_share_one_cluster(
    deploy: Callable[..., Deployment], clients: GetClient, java: Client, tmp_path: Path
) -> None:
    deployment = deploy(System.COMETMQ)
    names = {"brokerName": "broker-b"}
    with systems.start_broker(System.APACHE, tmp_path / "broker-b", deployment.address, names) as other:
        topic = "Spread"
        for broker in (deployment.broker, other):
            java.create_topic(deployment.address, broker.address, topic, queues=2)
        series = Series(topic, 40)
        sent = java.produce(deployment.address, series)
        assert {event["brokerName"] for event in sent} == {"broker-a", "broker-b"}
        for name in ("java4", "go"):
            messages = clients(name).consume(deployment.address, topic, f"spread-{name}", series.count)
            assert seen(messages) == sorted(series.expected())


def test_mqadmin_creates_changes_and_deletes_topics(cluster: Deployment, java: Client) -> None:
    broker = cluster.broker.address
    created = java.mqadmin(cluster.address, "updateTopic", "-b", broker, "-t", "ByAdmin", "-r", "5", "-w", "6")
    assert f"create topic to {broker} success." in created
    assert "topicName=ByAdmin, readQueueNums=5, writeQueueNums=6, perm=RW-" in created
    assert re.search(r"broker-a +\{0=.*\} +5 +6 +6", java.mqadmin(cluster.address, "topicRoute", "-l", "-t", "ByAdmin"))
    changed = java.mqadmin(cluster.address, "updateTopicPerm", "-b", broker, "-t", "ByAdmin", "-p", "4")
    assert "from 6 to 4" in changed
    with pytest.raises(CommandFailedError, match=r"sending message is forbidden|No route info|not permission"):
        java.produce(cluster.address, Series("ByAdmin", 1))
    with pytest.raises(MqAdminFailedError, match=r"illegal characters"):
        java.mqadmin(cluster.address, "updateTopic", "-b", broker, "-t", "bad.name*")

    deleted = java.mqadmin(cluster.address, "deleteTopic", "-c", CLUSTER_NAME, "-t", "ByAdmin")
    assert "delete topic [ByAdmin] from NameServer success." in deleted
    assert "ByAdmin" not in java.mqadmin(cluster.address, "topicList").split()
    with pytest.raises(MqAdminFailedError, match="No topic route info"):
        java.mqadmin(cluster.address, "topicRoute", "-t", "ByAdmin")


def test_mqadmin_shows_topics_and_cluster(cluster: Deployment, java: Client, topic: str) -> None:
    java.produce(cluster.address, Series(topic, 8), "selector")
    java.read_topic(cluster.address, topic, 8)
    assert re.search(
        rf"{CLUSTER_NAME} +broker-a +0 +{cluster.broker.address} +V4_9_[78] ",
        java.mqadmin(cluster.address, "clusterList"),
    )
    listed = java.mqadmin(cluster.address, "topicList").split()
    assert {topic, "TBW102", "SELF_TEST_TOPIC", "broker-a", CLUSTER_NAME} <= set(listed)
    assert f'"brokerAddrs":{{0:"{cluster.broker.address}"' in java.mqadmin(cluster.address, "topicRoute", "-t", topic)
    status = java.mqadmin(cluster.address, "topicStatus", "-t", topic)
    assert len(re.findall(r"^broker-a +\d +0 +2 +20\d\d-", status, re.MULTILINE)) == 4


def test_mqadmin_shows_the_brokers_state(cluster: Deployment, java: Client) -> None:
    status = java.mqadmin(cluster.address, "brokerStatus", "-b", cluster.broker.address)
    for key in ("bootTimestamp", "brokerVersionDesc", "commitLogMaxOffset", "msgPutTotalTodayNow", "putTps", "runtime"):
        assert re.search(rf"^{key} +: .", status, re.MULTILINE), key
    config = java.mqadmin(cluster.address, "getBrokerConfig", "-b", cluster.broker.address)
    assert re.search(r"^brokerName +=  broker-a$", config, re.MULTILINE)


def test_mqadmin_manages_groups_and_shows_their_progress(
    cluster: Deployment, java: Client, topic: str, group: str
) -> None:
    broker = cluster.broker.address
    created = java.mqadmin(cluster.address, "updateSubGroup", "-b", broker, "-g", group, "-r", "5")
    assert f"create subscription group to {broker} success." in created
    assert re.search(r"retryMaxTimes +=  5", java.mqadmin(cluster.address, "getConsumerConfig", "-g", group))
    java.produce(cluster.address, Series(topic, 8), "selector")
    java.consume(cluster.address, topic, group, 8)
    java.produce(cluster.address, Series(topic, 4), "selector")

    def progress() -> list[tuple[str, ...]]:
        shown = java.mqadmin(cluster.address, "consumerProgress", "-g", group)
        return re.findall(rf"^{topic} +broker-a +\d +(\d+) +(\d+) +(\d+) ", shown, re.MULTILINE)

    wait_for(lambda: progress() == [("3", "2", "1")] * 4, "the progress is shown", PATIENCE_S)
    assert group in java.mqadmin(cluster.address, "statsAll", "-t", topic)
    assert group in java.mqadmin(cluster.address, "consumerProgress")
    deleted = java.mqadmin(cluster.address, "deleteSubGroup", "-b", broker, "-g", group)
    assert f"delete subscription group [{group}] from broker [{broker}] success." in deleted


def test_mqadmin_shows_who_is_connected(cluster: Deployment, java: Client, topic: str, group: str) -> None:
    member = java.start_consuming(cluster.address, topic, group)
    member.wait_until(lambda: bool(member.named("assigned")), PATIENCE_S, "the member holds queues")
    shown = java.mqadmin(cluster.address, "consumerConnection", "-g", group)
    status = java.mqadmin(cluster.address, "consumerStatus", "-g", group)
    member.stop()
    assert re.search(rf"^{re.escape(member.named('started')[0]['clientId'])} .*JAVA +V4_9_7", shown, re.MULTILINE)
    assert "MessageModel: CLUSTERING" in shown
    assert "Same subscription in the same group of consumer" in status


def test_mqadmin_finds_messages(cluster: Deployment, java: Client, topic: str) -> None:
    (sent,) = java.produce(cluster.address, Series(topic, 1, tags=("Tag",), keys="needle other"))
    wait_for(lambda: bool(java.found(cluster.address, topic, "needle")), "the message is in the index", PATIENCE_S)
    by_key = java.mqadmin(cluster.address, "queryMsgByKey", "-t", topic, "-k", "needle")
    assert re.search(rf"^{sent['msgId']} +{sent['queueId']} +0", by_key, re.MULTILINE)
    for arguments in (
        ("queryMsgById", "-i", sent["offsetMsgId"]),
        ("queryMsgByUniqueKey", "-t", topic, "-i", sent["msgId"]),
    ):
        shown = java.mqadmin(cluster.address, *arguments)
        assert re.search(rf"^Topic: +{topic}$", shown, re.MULTILINE)
        assert re.search(r"^Tags: +\[Tag\]$", shown, re.MULTILINE)
        assert re.search(r"^Keys: +\[needle other\]$", shown, re.MULTILINE)
    with pytest.raises(MqAdminFailedError, match="no message"):
        java.mqadmin(cluster.address, "queryMsgByKey", "-t", topic, "-k", "absent")


@pytest.mark.parametrize("tools", ["java4", "java5"])
def test_mqadmin_sets_keys_of_apaches_whether_they_mean_anything_or_not(
    cluster: Deployment, clients: GetClient, tools: str
) -> None:
    broker, mqadmin = cluster.broker.address, clients(tools).mqadmin
    for key, value in {"maxTransferCountOnMessageInDisk": "16", "sendMessageThreadPoolNums": "6"}.items():
        said = mqadmin(cluster.address, "updateBrokerConfig", "-b", broker, "-k", key, "-v", value)
        assert f"update broker config success, {broker}" in said
        shown = mqadmin(cluster.address, "getBrokerConfig", "-b", broker)
        assert re.search(rf"^{key} +=  {value}$", shown, re.MULTILINE)
    said = mqadmin(cluster.address, "updateNamesrvConfig", "-k", "productEnvName", "-v", "tests")
    assert "update name server config success!" in said
    assert re.search(r"^productEnvName +=  tests$", mqadmin(cluster.address, "getNamesrvConfig"), re.MULTILINE)


def test_keys_that_mean_nothing_here_outlive_a_restart(deploy: Callable[..., Deployment], java: Client) -> None:
    deployment = deploy(System.COMETMQ, sendMessageThreadPoolNums="2")
    broker = deployment.broker.address
    java.mqadmin(
        deployment.address, "updateBrokerConfig", "-b", broker, "-k", "maxTransferCountOnMessageInDisk", "-v", "9"
    )
    deployment.broker.stop()
    assert "Apache keys that have no effect here: sendMessageThreadPoolNums\n" in deployment.logs()
    written = (deployment.broker.directory / "broker.conf").read_text()
    assert "maxTransferCountOnMessageInDisk=9\n" in written
    deployment.settings.update(re.findall("^(.+?)=(.*)$", written, re.MULTILINE))  # the harness writes it anew
    deployment.start_again(System.COMETMQ)
    shown = java.mqadmin(deployment.address, "getBrokerConfig", "-b", broker)
    assert re.search("^maxTransferCountOnMessageInDisk +=  9$", shown, re.MULTILINE)
    assert re.search("^sendMessageThreadPoolNums +=  2$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("topicClusterList -t TOPIC", "^DefaultCluster$"),
        ("topicRoute -l -t TOPIC", r"^DefaultCluster +broker-a +\{0=ADDRESS\} +4 +4 +6"),
        ("allocateMQ -t TOPIC -i 10.0.0.1,10.0.0.2", r'"10.0.0.2":\[\{"brokerName":"broker-a","queueId":\d'),
        ("brokerStatus -c DefaultCluster", "^ADDRESS +brokerVersionDesc +: V4_9_[78]"),
        ("brokerConsumeStats -b ADDRESS -l 0", "^TOPIC +GROUP +broker-a +[0-3] +2 +2 +0"),
        ("getBrokerConfig -c DefaultCluster", "^=+Master: ADDRESS=+$"),
        ("updateBrokerConfig -b ADDRESS -k fileReservedTime -v 71", "update broker config success, ADDRESS"),
        ("getNamesrvConfig", "^listenPort +=  NAMESRV_PORT$"),
        ("updateKvConfig -s Space -k key -v some=value", "create or update kv config to namespace success"),
        ("deleteKvConfig -s Space -k key", "delete kv config from namespace success"),
        ("updateOrderConf -t TOPIC -m put -v broker-a:4", r"update orderConf success. topic=\[TOPIC\]"),
        ("updateOrderConf -t TOPIC -m get", r"get orderConf success. topic=\[TOPIC\], orderConf=\[broker-a:4\]"),
        ("updateOrderConf -t TOPIC -m delete", "delete orderConf success"),
        ("sendMessage -t TOPIC2 -p from-mqadmin -c TagX -k mk", r"^broker-a +\d +SEND_OK +[0-9A-F]{32}"),
        ("queryMsgByOffset -t TOPIC -b broker-a -i 0 -o 0", "^Queue Offset: +0$"),
        ("consumeMessage -t TOPIC -b broker-a -i 0 -o 0 -c 1 -g interop-reader", "^Consume ok$"),
        ("printMsgByQueue -t TOPIC -a broker-a -i 0 -p true", "^MSGID: .* storeSize="),
        ("queryCq -t TOPIC -q 0 -i 0 -c 5 -b ADDRESS", "^max: 2, min: 0$"),
        ("consumerConnection -b ADDRESS -g GROUP", "^MessageModel: CLUSTERING$"),
        ("consumerProgress -g GROUP -s true", "^TOPIC +broker-a +0 +2 +2 +.+ 0 "),
        (
            "cloneGroupOffset -s GROUP -d interop-clone -t TOPIC -o true",
            r"clone group offset success. srcGroup\[GROUP\]",
        ),
        ("resetOffsetByTime -g GROUP -t TOPIC -s now", r"rollback consumer offset by specified group\[GROUP\]"),
        ("statsAll -t TOPIC", "^TOPIC +GROUP +0 "),
        ("sendMsgStatus -b broker-a -s 16 -c 2", "sendStatus=SEND_OK"),
        ("cleanExpiredCQ -b ADDRESS", "^success"),
        ("cleanUnusedTopic -b ADDRESS", "^success"),
        ("deleteExpiredCommitLog -b ADDRESS", "^success"),
        ("wipeWritePerm -b broker-a", r"wipe write perm of broker\[broker-a\] in name server\[NAMESRV\] OK, [1-9]"),
        ("addWritePerm -b broker-a", r"add write perm of broker\[broker-a\] in name server\[NAMESRV\] OK, [1-9]"),
    ],
    ids=lambda value: value.split()[0] if value[0].isalpha() else "",
)
def test_mqadmin_commands_answer(
    cluster: Deployment, java: Client, busy: tuple[str, str], command: str, expected: str
) -> None:
    names = {
        "TOPIC2": f"{busy[0]}-2",
        "TOPIC": busy[0],
        "GROUP": busy[1],
        "NAMESRV_PORT": str(cluster.namesrv.port),
        "NAMESRV": cluster.namesrv.address,
        "ADDRESS": cluster.broker.address,
    }
    for word, name in names.items():
        command, expected = command.replace(word, name), expected.replace(word, name)
    assert re.search(expected, java.mqadmin(cluster.address, *command.split()), re.MULTILINE)


@pytest.fixture(scope="module")
def busy(cluster: Deployment, java: Client) -> Iterator[tuple[str, str]]:
    """A topic of eight messages and a group with a member that has consumed them."""
    topic, group = "Busy", "busy-group"
    for name in (topic, f"{topic}-2"):
        java.create_topic(cluster.address, cluster.broker.address, name)
    java.produce(cluster.address, Series(topic, 8, tags=("Tag",), keys="k{i}"), "selector")
    java.consume(cluster.address, topic, group, 8)
    member = java.start_consuming(cluster.address, topic, group, timeout=300)
    member.wait_until(lambda: bool(member.named("assigned")), PATIENCE_S, "the member holds queues")
    yield topic, group
    member.ask_to_stop()  # And do not wait: after a reset of its offsets the Java client takes ten seconds.
