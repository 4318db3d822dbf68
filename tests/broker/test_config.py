"""broker.conf: Apache's keys, unknown keys, bad values."""

from __future__ import annotations

import dataclasses
import gzip
import io
import tarfile
from pathlib import Path

import pytest
from tests.helpers.apache_keys import keys_without_effect

from cometmq.apache_keys import BROKER
from cometmq.broker.config import BrokerConfig, load_broker_config
from cometmq.options import ConfigError, options_of
from cometmq.store.config import StoreConfig


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_apaches_own_example(tmp_path: Path) -> None:
    text = (
        "brokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = 0\ndeleteWhen = 04\n"
        "fileReservedTime = 48\nbrokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n"
    )
    config, warnings = load_broker_config(write(tmp_path / "broker.conf", text))
    assert not warnings
    assert (config.broker_name, config.file_reserved_time, config.flush_disk_type) == ("broker-a", 48, "ASYNC_FLUSH")


def test_unknown_key_is_named_with_the_nearest_known_one(tmp_path: Path) -> None:
    path = write(tmp_path / "broker.conf", "# a comment\nlistenPrt=1\nflushDiskTyp=SYNC_FLUSH\nzzz=1\n")
    config, warnings = load_broker_config(path)
    assert config.listen_port == 10_911
    assert warnings == [
        f"{path}:2: unknown key listenPrt ignored; did you mean listenPort?",
        f"{path}:3: unknown key flushDiskTyp ignored; did you mean flushDiskType?",
        f"{path}:4: unknown key zzz ignored",
    ]


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("listenPort=65536", "a whole number from 0 to 65535"),
        ("grpcServerPort=many", "a whole number from 0 to 65535"),
        ("requireFreshSignatures=maybe", "true or false"),
        ("storePathRootDir=/a\\u0000", "a path"),
        ("messageDelayLevel=1s 5x", "at most 256 delays such as 10s 5m 2h 1d"),
        ("messageDelayLevel=", "at most 256 delays such as 10s 5m 2h 1d"),
        ("messageDelayLevel=" + "1s " * 256 + "1s", "at most 256 delays such as 10s 5m 2h 1d"),
    ],
)
def test_a_value_with_which_no_server_starts_is_an_error_with_file_line_and_range(
    tmp_path: Path, line: str, allowed: str
) -> None:
    path = write(tmp_path / "broker.conf", f"brokerName=b\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        load_broker_config(path)
    shown = line.replace("\\u0000", "\0")
    assert caught.value.message == f"{path}:2: {shown}: allowed is {allowed}"


def test_as_many_delay_levels_as_allowed(tmp_path: Path) -> None:
    config, _ = load_broker_config(write(tmp_path / "broker.conf", "messageDelayLevel=" + "2s " * 256 + "\n"))
    assert config.delays_ms == (2_000,) * 256


def test_delays_and_hours_are_read_as_apache_writes_them(tmp_path: Path) -> None:
    config, _ = load_broker_config(
        write(tmp_path / "broker.conf", "messageDelayLevel=1s  2m 3h 4d\ndeleteWhen=04;16\n")
    )
    assert config.delays_ms == (1_000, 120_000, 10_800_000, 345_600_000)
    assert config.delete_hours == {4, 16}


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        load_broker_config(tmp_path / "absent.conf")


@pytest.mark.parametrize(
    ("line", "name", "value", "words"),
    [
        (
            b"diskMaxUsedSpaceRatio=98",
            "disk_max_used_space_ratio",
            95,
            "allowed is a whole number from 10 to 95; 95 is used",
        ),
        (b"diskMaxUsedSpaceRatio=75%", "disk_max_used_space_ratio", 75, "from 10 to 95; 75 is used"),
        (b"brokerId=0 # master", "broker_id", 0, "a whole number from 0 to 9223372036854775807; 0 is used"),
        (b"registerNameServerPeriod=+5", "register_name_server_period", 5, ""),
        (b"maxMessageSize=10485760  # 10MB", "max_message_size", 4_194_304, "4194304 is used"),
        (b"fileReservedTime=", "file_reserved_time", 72, "72 is used"),
        (b"fileReservedTime=48 ", "file_reserved_time", 72, "72 is used"),
        (b"fileReservedTime=1_000", "file_reserved_time", 72, "72 is used"),
        (b"fileReservedTime=99999999999", "file_reserved_time", 72, "72 is used"),
        (b"fileReservedTime\x0c=\x0c48", "file_reserved_time", 48, ""),
        (b"fileReservedTime=\xa048", "file_reserved_time", 72, "72 is used"),
        (
            b"deleteWhen=24",
            "delete_hours",
            {24},
            "hours from 0 to 23, separated by semicolons; the value is used anyway",
        ),
        (b"deleteWhen=04;never;5", "delete_hours", {4}, "the value is used anyway"),
        (b"brokerRole=slave", "broker_role", "ASYNC_MASTER", "ASYNC_MASTER is used"),
        (b"brokerRole=DLEDGER", "broker_role", "ASYNC_MASTER", "ASYNC_MASTER is used"),
        (b"flushDiskType=SYNC_FLUSH ", "flush_disk_type", "SYNC_FLUSH", ""),
        (b"aclEnable=maybe", "acl_enable", False, "allowed is true or false; false is used"),
        (b"autoCreateTopicEnable=true ", "auto_create_topic_enable", False, "false is used"),
        (b"storePathRootDir=", "root", Path("/"), "storePathRootDir is empty; / is used"),
        (
            b"storePathRootDir=/data ",
            "root",
            Path("/data "),
            "has the value '/data ', including any blanks, comments and quotes",
        ),
        (b"brokerClusterName=", "broker_cluster_name", "DefaultCluster", "is empty; DefaultCluster is used"),
        (b"brokerName=M\xfcnchen", "broker_name", "M\xfcnchen", ""),
        (
            b"brokerName=b  # master",
            "broker_name",
            "b  # master",
            "'b  # master', including any blanks, comments and quotes",
        ),
        (b"brokerIP2=10.0.0.1 ", "broker_ip2", "10.0.0.1", ""),
        (b'brokerName="b"', "broker_name", '"b"', "including any blanks, comments and quotes"),
        ("brokerName=消息".encode(), "broker_name", "消息", ""),
        (b"# \xd6\xd0\xce\xc4 in GBK", "broker_name", "", ""),
        (b"\xa0brokerName=b", "broker_name", "", "did you mean brokerName?"),
    ],
)
def test_a_line_that_apaches_brokers_take_has_their_result_and_one_warning(
    tmp_path: Path, line: bytes, name: str, value: object, words: str
) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"brokerIP1=127.0.0.1\n" + line + b"\n")
    config, warnings = load_broker_config(path)
    assert getattr(config, name) == value
    assert len(warnings) == bool(words)
    assert all(warning.startswith(f"{path}:2: ") and warning.endswith(words) for warning in warnings)


def test_nameserver_that_is_no_address(tmp_path: Path) -> None:
    path = write(tmp_path / "broker.conf", "namesrvAddr=127.0.0.1:9876;nameserver-2\n")
    with pytest.raises(ConfigError, match="the address does not have the form host:port: 'nameserver-2'"):
        load_broker_config(path)


def test_keys_that_mean_nothing_here_are_kept_and_named_in_one_line(tmp_path: Path) -> None:
    text = "timerWheelEnable=true\ntimerPrecisionMs=1000\nsendMessageThreadPoolNums=4\nenableControllerMode=true\n"
    path = write(tmp_path / "broker.conf", text)
    config, warnings = load_broker_config(path)
    assert config.timer_wheel_enable
    names = "timerPrecisionMs, sendMessageThreadPoolNums, enableControllerMode"
    assert warnings == [f"{path}: Apache keys that have no effect here: {names}"]
    assert config.unused == {
        "timerPrecisionMs": "1000",
        "sendMessageThreadPoolNums": "4",
        "enableControllerMode": "true",
    }


def test_every_key_of_apaches_brokers_is_known() -> None:
    known = options_of(BrokerConfig).keys() | keys_without_effect(BrokerConfig, BROKER).keys()
    assert len(known) > 500
    assert known >= {
        "maxTransferCountOnMessageInDisk",
        "defaultMessageRequestMode",
        "popResponseReturnActualRetryTopic",
        "isBrokerContainer",
    }


def test_command_line_wins(tmp_path: Path) -> None:
    path = write(tmp_path / "broker.conf", "listenPort=1\nbrokerName=b\n")
    config, _ = load_broker_config(path, listen_port=2)
    assert (config.listen_port, config.broker_name) == (2, "b")


def test_every_field_is_an_option_with_a_text() -> None:
    known = options_of(BrokerConfig)
    fields = {field.name for field in dataclasses.fields(BrokerConfig)}
    assert {found.name for found in known.values()} == fields - {"unused"}
    assert all(len(found.doc) > 10 for found in known.values())
    assert {field.name for field in dataclasses.fields(StoreConfig)} <= {found.name for found in known.values()}


@pytest.mark.parametrize("store", ["clean", "killed", "torn", "v6"])
def test_configurations_of_real_brokers(golden: Path, tmp_path: Path, store: str) -> None:
    packed = gzip.decompress((golden / "stores" / store / "store.tar.gz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        member = next(member for member in archive if member.name.endswith("broker.conf"))
        file = archive.extractfile(member)
        assert file is not None
        text = file.read().decode()
    config, warnings = load_broker_config(write(tmp_path / "broker.conf", text))
    assert config.broker_name == "broker-a"
    unknown = {line.split("unknown key ")[1].split(" ")[0] for line in warnings}
    assert unknown <= {"enablePropertyFilter"}


def test_a_sync_master_that_needs_no_slave_is_warned_of(tmp_path: Path) -> None:
    path = write(tmp_path / "broker.conf", "brokerRole=SYNC_MASTER\ninSyncReplicas=1\n")
    assert any("only this broker has the messages" in line for line in load_broker_config(path)[1])
    path.write_text("brokerRole=SYNC_MASTER\ninSyncReplicas=2\n")
    assert not load_broker_config(path)[1]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("failover=zookeeper", "allowed is empty, etcd or kubernetes"),
        ("failover=etcd", "needs etcdEndpoints (set etcdEndpoints="),
        ("failover=etcd\netcdEndpoints=a:2379", "URLs such as https://a:2379"),
        ("failover=kubernetes\nbrokerId=1", "remove brokerRole and brokerId, or failover"),
        ("failover=kubernetes\nbrokerRole=SYNC_MASTER", "remove brokerRole and brokerId, or failover"),
        ("failoverMember=-a", "beginning with a letter or digit"),
        ("etcdUser=broker", "etcdUser and etcdPasswordFile belong together"),
        ("etcdKeyFile=/key", "etcdKeyFile needs etcdCertFile"),
    ],
)
def test_keys_of_failover_that_contradict_each_other_are_errors(tmp_path: Path, lines: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_broker_config(write(tmp_path / "broker.conf", f"brokerName=a\n{lines}\n"))
    assert words in str(caught.value)


def test_a_set_with_an_engine_needs_no_role(tmp_path: Path) -> None:
    text = "failover = etcd\netcdEndpoints = https://a:2379;https://b:2379 \nfailoverLeaseMs=2500\n"
    config, warnings = load_broker_config(write(tmp_path / "broker.conf", text))
    assert not warnings
    assert (config.failover, config.failover_lease_ms) == ("etcd", 2_500)
    assert config.etcd_endpoints == "https://a:2379;https://b:2379"
