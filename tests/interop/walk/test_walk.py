"""Every request code of broker and nameserver, put to a real 4.9.7 and to ours: what differs is listed, nothing else.

A difference that is not below fails, and so does one below that is there no more. Each names the row of
``docs/differences.md`` that tells users about it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.helpers.waiting import wait_for
from tests.interop.clients import Client, Series
from tests.interop.systems import Deployment, System
from tests.interop.walk.cases import broker_cases
from tests.interop.walk.namesrv_cases import namesrv_cases
from tests.interop.walk.peer import Case, Peer, differences

from cometmq.remoting.codes import RequestCode, ResponseCode

pytestmark = pytest.mark.interop

PAGE = Path(__file__).parents[3] / "docs" / "differences.md"
Listed = dict[str, tuple[str, set[str]]]

FIELDS = "required header field missing, or a number out of range"
FORM = "messages requested with the binary header (12, 33)"
FILTER = "a pull with an invalid expression"
UNITS = "a queue's units (321)"
HALF_TOPIC = "`RMQ_SYS_TRANS_HALF_TOPIC` before the first round of checks"
TIMER_TOPIC = "`rmq_sys_wheel_timer`, where messages wait"
FIVE = "supported codes of 5.x"
ACL = "requests about ACLs (50 to 54)"
STATISTICS = "statistics (315)"
KEYS = "keys in the configuration response (26, 319)"
NO_EFFECT = "Apache's keys (4.9.0 to 5.5.0) without effect here, in a file and at run time"
NEW_FIELDS = {"timerCongestNum", "timerDequeueTps", "timerEnqueueTps", "timerOffsetBehind", "timerReadBehind"} | {
    "clockBehindStoreMs",
    "cometmqVersion",
    "currentTimestamp",
    "getTransferredTps",
    "missingQueueEntries",
    "oldestOpenTransactionAgeMs",
    "oldestOpenTransactionChecks",
    "oldestOpenTransactionGroup",
    "openTransactions",
    "transactionChecksSent",
    "transactionsCommitted",
    "transactionsGivenUp",
    "transactionsRolledBack",
}
ANSWERED_HERE = {"code 0 != 3", "remark"}

BROKER: Listed = {
    "send no fields 10": (FIELDS, {"remark", "-field MSG_REGION=…", "-field TRACE_ON=true"}),
    "send no fields 310": (FIELDS, {"remark", "-field MSG_REGION=…", "-field TRACE_ON=true"}),
    "batch retry": ("a batch to a retry topic", {"code 13 != 0", "remark"}),
    "batch empty": ("batch", {"code 13 != 1"}),
    "by key binary": (FORM, {"form"}),
    "view binary": (FORM, {"form"}),
    "view in between": ("a log offset at which no message begins (33)", {"code 1 != 0", "remark"}),
    "view in between binary": ("a log offset at which no message begins (33)", {"code 1 != 0", "remark", "form"}),
    "pull bad sql": (FILTER, {"code 23 != 0", "remark"}),
    "pull unknown expression": (FILTER, {"code 23 != 0", "remark"}),
    "pull 361": ("lite pull consumer of the 5.x Java client (code 361)", {"code 0 != 3", "remark"}),
    "offset unknown group not zero": ("`setZeroIfNotFound` in an offset query (14)", {"code 22 != 0", "remark"}),
    **{
        f"topics{when}": (TIMER_TOPIC, {"+body .topicConfigTable has rmq_sys_wheel_timer"})
        for when in ("", " before the first heartbeat", " after the first heartbeat")
    },
    **{
        f"pull RMQ_SYS_TRANS_HALF_TOPIC 0 {offset}": (HALF_TOPIC, {f"code {code} != 17", "remark"})
        for offset, code in ((0, 0), (1, 0), (2, 19), (99, 21))
    },
    "runtime": ("runtime information (28)", {f"+body .table.{name}:text" for name in NEW_FIELDS}),
    "topics of a group": (FIVE, ANSWERED_HERE),
    "topic config": (FIVE, ANSWERED_HERE),
    "group config": (FIVE, ANSWERED_HERE),
    "stats GROUP_GET_LATENCY": (STATISTICS, {"code 1 != 0", "remark"}),
    "stats TIMER_ENQUEUE_NUMS": (STATISTICS, {"code 0 != 1", "remark"}),
    "stats TIMER_DEQUEUE_NUMS": (STATISTICS, {"code 0 != 1", "remark"}),
    "queue": (UNITS, {"+body .queueData[].eval=true", "-body .queueData[].eval=false"}),
    "queue beyond": (UNITS, {"code 1 != 0"}),
    "queue unknown": (UNITS, {"code 1 != 0", "remark"}),
    "check again": ("RESUME_CHECK_HALF_MESSAGE (323) of an ordinary message", {"code 1 != 0", "remark"}),
    "update without effect": (NO_EFFECT, {"remark"}),
    "update unknown": ("configuration at run time (25)", {"code 1 != 0", "remark"}),
    "acl 50": (ACL, {"code 3 != 209", "remark"}),
    "acl 51": (ACL, {"code 3 != 210", "remark"}),
    "acl 53": (ACL, {"code 3 != 211", "remark"}),
    "code 60": (FIVE, ANSWERED_HERE),
    "code 61": (FIVE, ANSWERED_HERE),
    "code 907": (FIVE, ANSWERED_HERE),
    "code 370": ("recall (370)", {"code 1 != 3", "remark"}),
    **{
        f"code {code}": ("POP and 5.x list requests without their fields", {"code 1 != 3", "remark"})
        for code in (18, 225, 400, 401, 200050, 200051, 200052)
    },
    "code 402": (FIVE, ANSWERED_HERE),
    "code 513": (
        "static topics (code 513, `mqadmin updateStaticTopic`), whose logical queues move between brokers",
        {"code 1 != 3", "remark"},
    ),
}
NAMESRV: Listed = {
    "put no fields": (FIELDS, {"remark"}),
    "route no fields": (FIELDS, {"code 1 != 17", "remark"}),
    "update without effect": (NO_EFFECT, {"remark"}),
    "update unknown": ("configuration at run time (318)", {"code 1 != 0", "remark"}),
}
OURS_ALONE = {"bindAddress", "logLevel", "serverMaxConnections"}
NEWER = {  # keys of 5.x that mean something here
    "authenticationEnabled",
    "authorizationEnabled",
    "configStorePath",
    "defaultMessageRequestMode",
    "defaultPopShareQueueNum",
    "deleteFileBatchMax",
    "diskSpaceCleanForciblyRatio",
    "enableAutoInSyncReplicas",
    "enableLmqQuota",
    "enablePopMessageThreshold",
    "haMasterAddress",
    "hookNames",
    "inSyncReplicas",
    "liteSubscriptionCheckInterval",
    "liteSubscriptionCheckTimeoutMills",
    "liteTtlCheckInterval",
    "maxLiteSubscriptionCount",
    "maxPopPollingSize",
    "minInSyncReplicas",
    "minLiteTTl",
    "popFromRetryProbabilityForPriority",
    "popInflightMessageThreshold",
    "popPollingSize",
    "priorityOrderAsc",
    "recallMessageEnable",
    "timerMaxDelaySec",
    "timerWheelEnable",
}
SECURITY = {  # system properties of Apache's, and our own; passwords are not shown
    "aclPath",
    "auditLogEnable",
    "auditLogFileCount",
    "auditLogFileSize",
    "auditLogPath",
    "auditLogSampling",
    "authConfigPath",
    "authKeyPath",
    "authenticationWhitelist",
    "authorizationWhitelist",
    "migrateAuthFromV1Enabled",
    "requireFreshSignatures",
    "tls.client.authServer",
    "tls.client.certPath",
    "tls.client.checkHost",
    "tls.client.keyPath",
    "tls.client.trustCertPath",
    "tls.config.file",
    "tls.enable",
    "tls.server.authClient",
    "tls.server.certPath",
    "tls.server.keyPath",
    "tls.server.mode",
    "tls.server.need.client.auth",
    "tls.server.trustCertPath",
    "tls.test.mode.enable",
}
FAILOVER = {
    "brokerElectionPriority",
    "etcdCaFile",
    "etcdCertFile",
    "etcdEndpoints",
    "etcdKeyFile",
    "etcdPasswordFile",
    "etcdUser",
    "failover",
    "failoverLeaseMs",
    "failoverMember",
    "failoverPrefix",
    "kubernetesNamespace",
}
GRPC = {"grpcServerPort"}  # of Apache's proxy
METRICS = {
    "metricGrpcExporterIntervalInMills",
    "metricGrpcExporterTimeOutInMills",
    "metricsExporterType",
    "metricsGrpcExporterTarget",
    "metricsLabel",
    "metricsPromExporterHost",
    "metricsPromExporterPort",
}
OURS_OF_BROKER = {"advertisedListeners", "archive.read", "metricsOtelCardinalityLimit", "metricsPerQueue"}
OURS_OF_NAMESRV = {"listeners"}
NEWER_SECURITY = {"aclEnable", "authenticationEnabled", "authorizationEnabled"}  # at a nameserver
NEWER_NAMESRV = {"brokerChannelExpiredTime", "scanNotActiveBrokerInterval"}


@pytest.fixture
def both(deploy: Callable[..., Deployment]) -> tuple[Deployment, Deployment]:
    """A nameserver and a broker of ours, and of Apache's."""
    filters = {"enablePropertyFilter": "true"}
    return deploy(System.COMETMQ, **filters), deploy(System.APACHE, **filters)


def walk(ours: str, theirs: str, cases: Sequence[Case]) -> dict[str, set[str]]:
    """The differences, by the names of the cases."""
    peers = Peer(ours), Peer(theirs)
    runtimes = [case for case in cases if case.name == "runtime"]

    def has_sampled() -> bool:
        return all(peers[1].ask(case).code == ResponseCode.SUCCESS for case in runtimes)

    def has_dispatched() -> bool:
        answers = [peers[1].ask(case) for case in runtimes]
        return all(json.loads(answer.body)["table"]["dispatchBehindBytes"] == "0" for answer in answers)

    wait_for(has_sampled, "Apache's broker has a first sample of its statistics")
    found = {}
    for case in cases:
        if case.code in (RequestCode.PULL_MESSAGE, RequestCode.GET_MAX_OFFSET):
            wait_for(has_dispatched, "Apache's broker has given the messages their places in their queues")
        found[case.name] = differences(*(peer.ask(case) for peer in peers))
    for peer in peers:
        peer.close()
    return {name: words for name, words in found.items() if words}


def keys_of(found: set[str], sign: str) -> set[str]:
    """Keys of the configuration that only one side shows."""
    return {words.removeprefix(f"{sign}body ") for words in found if words.startswith(sign)}


def test_every_answer_is_apaches_but_for_what_is_listed(both: tuple[Deployment, Deployment]) -> None:
    ours, theirs = both
    found = walk(ours.broker.address, theirs.broker.address, list(broker_cases()))
    shown = found.pop("configuration")
    newer = NEWER | SECURITY | METRICS | GRPC | FAILOVER
    assert sorted(keys_of(shown, "+") ^ (OURS_ALONE | newer | OURS_OF_BROKER)) == []
    assert keys_of(shown, "-") == set()
    assert found == {name: words for name, (_, words) in BROKER.items()}
    found = walk(ours.address, theirs.address, list(namesrv_cases()))
    shown = found.pop("configuration")
    newer = NEWER_NAMESRV | NEWER_SECURITY
    assert sorted(keys_of(shown, "+") ^ (OURS_ALONE | OURS_OF_NAMESRV | newer | SECURITY | METRICS)) == []
    assert keys_of(shown, "-") == set()
    assert found == {name: words for name, (_, words) in NAMESRV.items()}


def test_every_listed_difference_has_a_row_for_users() -> None:
    rows = {line.split("|")[1].strip() for line in PAGE.read_text(encoding="utf-8").splitlines() if line.count("|") > 2}
    assert {row for row, _ in (BROKER | NAMESRV).values()} | {KEYS, "version in responses"} <= rows


def test_a_client_with_binary_headers_finds_messages_by_key_and_by_either_id(
    cluster: Deployment, clients: Callable[[str], Client], topic: str
) -> None:
    client = clients("java4-binary")
    (sent,) = client.produce(cluster.address, Series(topic, 1, keys="needle"))
    (by_key,) = client.found(cluster.address, topic, "needle")
    assert by_key["msgId"] == sent["msgId"]
    for identifier in (sent["msgId"], sent["offsetMsgId"]):
        (viewed,) = client.admin(cluster.address, "view", topic=topic, id=identifier)
        assert viewed["bodySha256"] == by_key["bodySha256"]
