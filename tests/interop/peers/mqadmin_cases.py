"""Every command of Apache's mqadmin 4.9.7 and 5.5.0: how it is run against CometMQ, and what has to come of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BOTH: Final = ("4.9.7", "5.5.0")
OLD: Final = ("4.9.7",)
NEW: Final = ("5.5.0",)


@dataclass(frozen=True)
class Case:
    """One command of mqadmin.

    ``words`` may have ``{broker}``, ``{msg_id}`` and ``{offset_id}``; the nameserver is added.
    """

    name: str
    words: str = ""
    shows: str = ""
    """A regular expression that the output has where the command works."""
    versions: tuple[str, ...] = BOTH
    differs: str = ""
    """The difference from Apache's brokers; the output has an exception, too."""
    no_meaning: str = ""
    """The reason why CometMQ does not answer it; then the output has an exception or an error."""
    elsewhere: str = ""
    """The test that runs it, where this one does not."""


ACCOUNTS_4: Final = "needs `aclEnable`; run by `access/test_accounts.py`"
ACCOUNTS_5: Final = "needs `authenticationEnabled`; run by `access/test_policies.py` and `test_accounts.py`"
CONTROLLER: Final = "concerns the RocketMQ 5 controller; CometMQ's sets decide by etcd or Kubernetes"
FAILOVER: Final = "needs `failover`; `-a` is any member of the set; run by `peers/test_mqadmin_failover.py`"
ROCKSDB: Final = "concerns tables in RocksDB; CometMQ uses JSON files, as in 4.9"
COLD: Final = "concerns Apache's cold-data limit for the page cache; CometMQ has none"
STATIC: Final = "concerns static topics, whose logical queues move between brokers"

CASES: Final = (
    Case("updateTopic", "-t Fresh -c DefaultCluster -r 4 -w 4", "create topic to .* success"),
    Case("updateTopicList", "-f {topics_file} -c DefaultCluster", "create topic|submit batch of topic|success", NEW),
    Case("deleteTopic", "-t Fresh -c DefaultCluster", "delete topic .* success"),
    Case("updateSubGroup", "-g FreshGroup -c DefaultCluster", "create subscription group to .* success"),
    Case("updateSubGroupList", "-f {groups_file} -c DefaultCluster", "success", NEW),
    Case("deleteSubGroup", "-g FreshGroup -c DefaultCluster", "delete subscription group .* success"),
    Case("setConsumeMode", "-t Orders -g Readers -m PULL -q 0 -c DefaultCluster", "set consume mode .* success", NEW),
    Case("updateBrokerConfig", "-b {broker} -k fileReservedTime -v 71", "update broker config success"),
    Case("updateTopicPerm", "-t Orders -b {broker} -p 6", "set perm|new perm equals|update topic perm"),
    Case("topicRoute", "-t Orders", "brokerAddrs"),
    Case("topicStatus", "-t Orders", "broker-a"),
    Case("topicClusterList", "-t Orders", "DefaultCluster"),
    Case("addBroker", "-c {broker} -b x", "", NEW, no_meaning="concerns broker containers; every broker is a process"),
    Case("removeBroker", "-c {broker} -b DefaultCluster:broker-a:0", "", NEW, no_meaning="concerns broker containers"),
    Case("resetMasterFlushOffset", "-b {broker} -o 0", "", NEW, no_meaning=CONTROLLER),
    Case("brokerStatus", "-b {broker}", "putTps"),
    Case("queryMsgById", "-i {offset_id}", "OffsetID", OLD),
    Case("queryMsgById", "-i {offset_id} -t Orders", "OffsetID", NEW),
    Case("queryMsgByKey", "-t Orders -k key-1", "[0-9A-F]{32}"),
    Case("queryMsgByUniqueKey", "-t Orders -i {msg_id}", "Queue ID"),
    Case("queryMsgByOffset", "-t Orders -b broker-a -i {queue} -o {offset}", "OffsetID"),
    Case("queryMsgTraceById", "-i {msg_id} -t RMQ_SYS_TRACE_TOPIC", "Pub|#Type"),
    Case("printMsg", "-t Orders -d true", "message-1"),
    Case("printMsgByQueue", "-t Orders -a broker-a -i {queue} -p true -d true", "message-"),
    Case("sendMsgStatus", "-b broker-a -c 3 -s 10", "SEND_OK"),
    Case("brokerConsumeStats", "-b {broker}", "Readers|Diff Total: [1-9]"),
    Case("producerConnection", "-g Writers -t Orders", "PYTHON|JAVA|0001"),
    Case("consumerConnection", "-g Readers", "Orders"),
    Case("consumerProgress", "-g Readers", "Consume TPS"),
    Case("consumerStatus", "-g Readers", "ConsumerRunningInfoFile"),
    Case("cloneGroupOffset", "-s Readers -d Cloned -t Orders", "clone group offset success"),
    Case("producer", "-b {broker}", "Writers"),
    Case("clusterList", "", "broker-a"),
    Case("topicList", "", "Orders"),
    Case("updateKvConfig", "-s space -k key -v value", "create or update kv config to namespace success"),
    Case("deleteKvConfig", "-s space -k key", "delete kv config from namespace success"),
    Case("wipeWritePerm", "-b broker-a", "wipe write perm of broker.* OK"),
    Case("addWritePerm", "-b broker-a", "add write perm of broker.* OK"),
    Case("resetOffsetByTime", "-g Idle -t Orders -s -1", "(?s)success|[0-9]+ +[0-9]+|rollback|reset"),
    Case("skipAccumulatedMessage", "-g Idle -t Orders", "(?s)brokerName|[0-9]|success"),
    Case("updateOrderConf", "-m put -t Orders -v broker-a:4", "success"),
    Case("cleanExpiredCQ", "-b {broker}", "success"),
    Case("deleteExpiredCommitLog", "-b {broker}", "success"),
    Case("cleanUnusedTopic", "-b {broker}", "success"),
    Case("startMonitoring", elsewhere="never ends; sends the same requests as `consumerProgress` and `consumerStatus`"),
    Case("statsAll", "", "Orders"),
    Case("allocateMQ", "-t Orders -i 127.0.0.1,127.0.0.2", "Orders"),
    Case("checkMsgSendRT", "-t Orders -a 3 -s 16", "Avg RT"),
    Case("clusterRT", elsewhere="never ends; sends messages to topics named after brokers, as `sendMsgStatus` does"),
    Case("getNamesrvConfig", "", "listenPort"),
    Case("updateNamesrvConfig", "-k orderMessageEnable -v true", "update name server config success"),
    Case("getBrokerConfig", "-b {broker}", "brokerName"),
    Case("getConsumerConfig", "-g Readers", "retryMaxTimes|retryQueueNums"),
    Case("queryCq", "-t Orders -q {queue} -i 0 -c 5 -b {broker}", "physicOffset|Index"),
    Case("sendMessage", "-t Orders -p hello", "SEND_OK"),
    Case("consumeMessage", "-t Orders -b broker-a -i {queue} -o 0 -c 1", "message-|Consume ok"),
    Case("updateAclConfig", versions=OLD, elsewhere=ACCOUNTS_4),
    Case("deleteAclConfig", versions=OLD, elsewhere=ACCOUNTS_4),
    Case("clusterAclConfigVersion", versions=OLD, elsewhere=ACCOUNTS_4),
    Case("updateGlobalWhiteAddr", versions=OLD, elsewhere=ACCOUNTS_4),
    Case("getAclConfig", versions=OLD, elsewhere=ACCOUNTS_4),
    Case("updateStaticTopic", "-t Static -qn 2 -c DefaultCluster", "", NEW, no_meaning=STATIC),
    Case("remappingStaticTopic", "-t Static -c DefaultCluster", "", NEW, no_meaning=STATIC),
    Case("exportMetadata", "-c DefaultCluster -f {directory}", "export .* success"),
    Case("exportConfigs", "-c DefaultCluster -f {directory}", "export .* success"),
    Case("exportMetrics", "-c DefaultCluster -f {directory}", "export .* success"),
    Case("exportMetadataInRocksDB", "-p {directory} -t topics", "", NEW, no_meaning=ROCKSDB),
    Case("exportPopRecord", "-c DefaultCluster", "", NEW, no_meaning="moves POP records from RocksDB into files"),
    Case("haStatus", "-b {broker}", "#MasterCommitLogMaxOffset", NEW),
    Case("getSyncStateSet", versions=NEW, elsewhere=FAILOVER),
    Case("getBrokerEpoch", versions=NEW, elsewhere=FAILOVER),
    Case("getControllerMetaData", versions=NEW, elsewhere=FAILOVER),
    Case("getControllerConfig", versions=NEW, elsewhere=FAILOVER),
    Case("updateControllerConfig", "-a {broker} -k a -v b", "", NEW, no_meaning=CONTROLLER),
    Case("electMaster", versions=NEW, elsewhere=FAILOVER),
    Case("cleanBrokerMetadata", versions=NEW, elsewhere=FAILOVER),
    Case("dumpCompactionLog", "", "", NEW, no_meaning="reads files of compaction topics, which CometMQ does not have"),
    Case("getColdDataFlowCtrInfo", "-b {broker}", "", NEW, no_meaning=COLD),
    Case("updateColdDataFlowCtrGroupConfig", "-b {broker} -g g -v 1", "", NEW, no_meaning=COLD),
    Case("removeColdDataFlowCtrGroupConfig", "-b {broker} -g g", "", NEW, no_meaning=COLD),
    Case("setCommitLogReadAheadMode", "-b {broker} -m 1", "", NEW, no_meaning="concerns Apache's memory maps"),
    *(
        Case(name, versions=NEW, elsewhere=ACCOUNTS_5)
        for name in (
            *("createUser", "updateUser", "deleteUser", "getUser", "listUser", "copyUser"),
            *("createAcl", "updateAcl", "deleteAcl", "getAcl", "listAcl", "copyAcl"),
        )
    ),
    Case("rocksDBConfigToJson", "-b {broker} -t topics", "", NEW, no_meaning=ROCKSDB),
    Case("checkRocksdbCqWriteProgress", "-c DefaultCluster", "", NEW, no_meaning=ROCKSDB),
    Case("switchTimerEngine", "-b {broker} -e F", "", NEW, no_meaning="CometMQ has one engine for delayed messages"),
    Case("getBrokerLiteInfo", "-b {broker}", "#Current LMQ", NEW),
    Case("getParentTopicInfo", "-p Sessions", "broker-a", NEW),
    Case("getLiteTopicInfo", "-p Sessions -l a", "broker-a", NEW),
    Case("getLiteClientInfo", "-p Sessions -g Agents -c c", "broker-a", NEW),
    Case("getLiteGroupInfo", "-p Sessions -g Agents", "Total Lag Count", NEW),
    Case("triggerLiteDispatch", "-p Sessions -g Agents", "dispatched", NEW),
)

_HEAD: Final = """# Apache's mqadmin

Unmodified Apache `mqadmin` 4.9.7 and 5.5.0 work with CometMQ. `tests/interop/peers/test_mqadmin.py` runs every command
against a CometMQ nameserver and broker, and compares the result with this table. `scripts/mqadmin_table` generates it.

`works`: the command behaves as it does with Apache's servers. `differs`: the remark explains how. `no meaning here`:
the command concerns a feature that CometMQ does not have. `–`: that version does not have the command.

| command | 4.9.7 | 5.5.0 | remark |
|---|---|---|---|
"""


def page() -> str:
    """Return the page with the table of all commands."""
    names = sorted({case.name for case in CASES}, key=str.lower)
    return _HEAD + "".join(f"{_row([case for case in CASES if case.name == name])}\n" for name in names)


def _row(cases: list[Case]) -> str:
    """Return the row of one command; a case may be for one version."""
    verdicts = dict.fromkeys(BOTH, "–")
    for case in cases:
        verdict = "no meaning here" if case.no_meaning else "differs" if case.differs else "works"
        verdicts |= dict.fromkeys(case.versions, verdict)
    remark = cases[0].no_meaning or cases[0].differs or cases[0].elsewhere
    return f"| `{cases[0].name}` | {' | '.join(verdicts[version] for version in BOTH)} | {remark} |"
