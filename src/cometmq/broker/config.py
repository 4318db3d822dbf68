"""Broker configuration: the keys in Apache's ``broker.conf`` that have an effect.

Like Apache's file, the configuration is flat: it adds ``BrokerConfig`` and ``NettyServerConfig`` to
``MessageStoreConfig`` (:class:`~cometmq.store.config.StoreConfig`), which is passed to the store.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from cometmq.apache_keys import BROKER, apache_keys
from cometmq.auth.options import SecurityOptions
from cometmq.broker.failover_keys import FailoverKeys, check_keys
from cometmq.broker.limits import MAX_TIMER_DELAY_SECONDS
from cometmq.broker.replication_keys import ReplicationKeys
from cometmq.errors import reason_of
from cometmq.limits import MAX_CONNECTIONS, MAX_FRAME_BYTES, MAX_MESSAGE_BYTES, MAX_QUERY_MESSAGES
from cometmq.log_level import LOG_LEVEL_DOC, LOG_LEVELS
from cometmq.message.hosts import ip_of, own_ip, parse_address, split_addresses, unmapped
from cometmq.message.listeners import EVERY_CLIENT, Advertised, parse_advertised
from cometmq.message.names import MASTER_ID, TRACE_TOPIC
from cometmq.message.ports import BROKER_PORT
from cometmq.metrics.options import MetricsOptions
from cometmq.options import ApacheRules, ConfigError, option
from cometmq.options.forms import Form, one_of
from cometmq.remoting.tls.options import load_with_tls
from cometmq.storage import Location, StorageOptions
from cometmq.store.config import StoreConfig

ASYNC_MASTER: Final = "ASYNC_MASTER"
SYNC_MASTER: Final = "SYNC_MASTER"
SLAVE: Final = "SLAVE"

_MILLISECONDS_OF_A_DAY: Final = 86_400_000
_SHOWN_CHARS: Final = 1_000


def _url_of_storage(text: str) -> str:
    if text:
        Location.parse(text)
    return text


def storage_options(text: str) -> dict[str, str]:
    """Return the options in ``archive.read.storage``, by name."""
    return dict(part.strip().partition("=")[::2] for part in text.split(",") if part.strip())


def _options_of_storage(text: str) -> str:
    StorageOptions.from_texts(storage_options(text))
    return text


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerConfig(SecurityOptions, MetricsOptions, FailoverKeys, ReplicationKeys, StoreConfig):
    """The options of a broker process, including those of its store."""

    # --- name and addresses ----------------------------------------------------------------------
    broker_cluster_name: str = option(
        "DefaultCluster", "Name of the cluster that this broker belongs to.", apache=ApacheRules(empty="DefaultCluster")
    )
    broker_name: str = option("", "Name of this broker. Empty: the host name.")
    broker_id: int = option(
        MASTER_ID,
        "Id of this broker among those with the same name. The master has id 0, and slaves have higher ids.",
        maximum=2**63 - 1,
    )
    broker_role: str = option(
        ASYNC_MASTER,
        "Role in replication. A SYNC_MASTER acknowledges a message once its slaves have it. A SLAVE follows a master.",
        form=one_of(ASYNC_MASTER, SYNC_MASTER, SLAVE),
    )
    broker_ip1: str = option(
        "",
        "Address or host name that clients connect to. Message ids contain the address. Empty: determined "
        "automatically.",
        key="brokerIP1",
        apache=ApacheRules(stripped=True),
    )
    broker_ip2: str = option(
        "",
        "Address that slaves of this broker connect to. Empty: brokerIP1.",
        key="brokerIP2",
        apache=ApacheRules(stripped=True),
    )
    advertised_listeners: str = option(
        "",
        "Addresses that clients connect to, separated by commas: HOST[:PORT] for all clients, instead of brokerIP1, "
        "and "
        "LISTENER=HOST[:PORT] for clients of a nameserver listener. PORT defaults to listenPort.",
    )
    bind_address: str = option("0.0.0.0", "Address to listen on. Empty: all IPv4 and IPv6 addresses.")
    listen_port: int = option(
        BROKER_PORT,
        "Port for clients and tools. 0 selects a free port.",
        maximum=65_535,
        apache=ApacheRules(outside="refused"),
    )
    namesrv_addr: str = option(
        "",
        "Nameservers to register with: host:port, separated by semicolons. Empty: none.",
        apache=ApacheRules(stripped=True),
    )
    register_name_server_period: int = option(
        30_000,
        "Interval between registrations, in milliseconds. It is limited to the range from 10 s to 60 s.",
        minimum=1,
    )
    register_broker_timeout_mills: int = option(
        6_000, "Timeout for a registration at a nameserver, in milliseconds.", minimum=100, maximum=60_000
    )
    compressed_register: bool = option(False, "Compress all registrations, not only those larger than 1 MiB.")

    log_level: str = option("", LOG_LEVEL_DOC, form=one_of(*LOG_LEVELS), runtime=True)
    metrics_per_queue: bool = option(False, "Also report the lag of each group by queue.", runtime=True)
    metrics_otel_cardinality_limit: int = option(
        2_000,
        "Maximum number of series in a metric family, such as one per topic. All further series are combined into one.",
        minimum=1,
        maximum=250_000,
        runtime=True,
    )
    hook_names: str = option("", "Hooks to use: names of entry points in the group cometmq.hooks, separated by commas.")

    # --- topics and groups ----------------------------------------------------------------------
    auto_create_topic_enable: bool = option(True, "Create a topic when the first message is sent to it.", runtime=True)
    default_topic_queue_nums: int = option(
        8,
        "Number of queues in an automatically created topic, unless the producer requests fewer.",
        minimum=1,
        maximum=1024,
    )
    cluster_topic_enable: bool = option(True, "Allow reading and writing the topic with the cluster's name.")
    broker_topic_enable: bool = option(True, "Allow reading and writing the topic with the broker's name.")
    trace_topic_enable: bool = option(False, "Create the topic for message traces.")
    msg_trace_topic_name: str = option(TRACE_TOPIC, "Name of the topic for message traces.")
    auto_create_subscription_group: bool = option(True, "Create a consumer group on its first use.", runtime=True)
    broker_permission: int = option(
        6, "Permission of the broker: 4 for reading, 2 for writing, 6 for both.", minimum=0, maximum=6, runtime=True
    )

    # --- sends ----------------------------------------------------------------------------------
    max_message_size: int = option(
        MAX_MESSAGE_BYTES, "Maximum size of a message body, in bytes.", minimum=1, maximum=MAX_FRAME_BYTES // 2
    )
    sync_flush_timeout: int = option(
        5_000,
        "SYNC_FLUSH: maximum time to wait for a flush before a message is answered as not flushed, in milliseconds.",
        minimum=1,
    )
    store_reply_message_enable: bool = option(
        True, "Also store the replies to requests, which are passed on to the requesters.", runtime=True
    )
    region_id: str = option("DefaultRegion", "Region that the answers to sends contain (MSG_REGION).")
    trace_on: bool = option(True, "Tell clients that they may trace messages (TRACE_ON).")
    start_accept_send_request_time_stamp: int = option(
        0, "Refuse sends until this time, in milliseconds since 1970.", maximum=2**63 - 1
    )

    # --- pulls ----------------------------------------------------------------------------------
    archive_read: str = option(
        "",
        "Path or URL of an archive, from which this broker reads messages that it has deleted; see docs/lake.md.",
        key="archive.read",
        form=Form("a path or URL", _url_of_storage),
        apache=ApacheRules(outside="refused", stripped=True),
    )
    archive_read_storage: str = option(
        "",
        "Options of the archive's storage, NAME=VALUE joined by commas, such as endpoint=http://minio:9000.",
        key="archive.read.storage",
        form=Form("NAME=VALUE joined by commas", _options_of_storage),
        secret=True,
        apache=ApacheRules(outside="refused", stripped=True),
    )
    long_polling_enable: bool = option(
        True, "Let pull requests wait for messages for the time that they specify.", runtime=True
    )
    short_polling_time_mills: int = option(
        1_000,
        "Time for which pull requests wait if longPollingEnable is false, in milliseconds.",
        maximum=60_000,
        runtime=True,
    )
    max_transfer_bytes_on_message_in_memory: int = option(
        1_048_576,
        "Maximum total size of the messages in one pull response, in bytes. A pull request may specify a smaller size.",
        minimum=1_024,
        maximum=8_388_608,
        runtime=True,
    )
    max_transfer_count_on_message_in_memory: int = option(
        1_024, "Maximum number of messages in one pull response.", minimum=1, maximum=16_384, runtime=True
    )
    access_message_in_memory_max_ratio: int = option(
        40,
        "Percentage of memory. A new group starts at a queue's first message unless the log has grown by more than "
        "this "
        "since then. With slaveReadEnable, consumers that are further behind read from a slave.",
        minimum=0,
        maximum=95,
        runtime=True,
    )
    default_query_max_num: int = option(
        32, "Maximum number of messages returned by a query by unique key.", minimum=1, maximum=MAX_QUERY_MESSAGES
    )
    flush_consumer_offset_interval: int = option(
        5_000,
        "Interval at which consumer offsets are written to disk, in milliseconds.",
        minimum=100,
        maximum=_MILLISECONDS_OF_A_DAY,
    )

    # --- pops -----------------------------------------------------------------------------------
    max_pop_polling_size: int = option(
        100_000, "Maximum number of waiting pop requests from all groups.", minimum=0, maximum=10_000_000, runtime=True
    )
    pop_polling_size: int = option(
        1_024,
        "Maximum number of waiting pop requests for one group and topic.",
        minimum=0,
        maximum=10_000_000,
        runtime=True,
    )
    enable_pop_message_threshold: bool = option(
        False,
        "Let pops skip a queue in which the group has popInflightMessageThreshold unacknowledged messages.",
        runtime=True,
    )
    pop_inflight_message_threshold: int = option(
        10_000,
        "With enablePopMessageThreshold: maximum number of unacknowledged popped messages per queue and group.",
        minimum=1,
        maximum=2**31 - 1,
        runtime=True,
    )

    priority_order_asc: bool = option(
        True,
        "In a topic of type PRIORITY, pops begin at the highest number. If false, they begin at 0.",
        runtime=True,
    )
    pop_from_retry_probability_for_priority: int = option(
        0,
        "Percentage of pops by priority that hand out a level's messages to be retried before its other messages.",
        minimum=0,
        maximum=100,
        runtime=True,
    )
    default_message_request_mode: str = option(
        "PULL",
        "Default mode for clients whose queues the broker assigns: PULL or POP.",
        form=one_of("PULL", "POP"),
        runtime=True,
    )
    default_pop_share_queue_num: int = option(
        -1,
        "POP: number of other members that also pop from a member's queues. If it is 0 or less, all members pop from "
        "all queues.",
        minimum=-1,
        maximum=2**31 - 1,
        runtime=True,
    )

    # --- filters --------------------------------------------------------------------------------
    enable_property_filter: bool = option(
        False, "Allow subscriptions with SQL92 expressions on message properties.", runtime=True
    )
    filter_support_retry: bool = option(
        False,
        "Filter pulls from a retry topic by the group's SQL92 subscription to each message's original topic.",
        runtime=True,
    )
    filter_data_clean_time_span: int = option(
        _MILLISECONDS_OF_A_DAY,
        "Time after which the SQL92 filter of a group that has no members is removed, in milliseconds.",
        maximum=2**63 - 1,
        runtime=True,
    )
    max_error_rate_of_bloom_filter: int = option(
        20,
        "Error rate, in percent, of the Bloom filter that is written to consumerFilter.json for Apache's broker.",
        minimum=1,
        maximum=99,
    )
    expect_consumer_num_use_filter: int = option(
        32, "Number of groups with filters per topic for which the Bloom filter is sized.", minimum=1, maximum=65_536
    )

    # --- lite topics ----------------------------------------------------------------------------
    enable_lmq_quota: bool = option(
        False, "Refuse messages to new lite topics if there are maxLmqConsumeQueueNum lite topics."
    )
    max_lmq_consume_queue_num: int = option(
        20_000, "With enableLmqQuota: maximum number of lite topics.", minimum=0, maximum=100_000_000
    )
    max_lite_subscription_count: int = option(
        100_000,
        "Maximum number of lite topics that all clients together read; one that two clients read counts twice.",
        minimum=0,
        maximum=10_000_000,
    )
    lite_subscription_check_timeout_mills: int = option(
        180_000,
        "Time after which the subscription of a client that does not renew it ends, in milliseconds.",
        minimum=1_000,
        maximum=_MILLISECONDS_OF_A_DAY,
    )
    lite_subscription_check_interval: int = option(
        120_000,
        "Interval at which subscriptions that are not renewed are looked for, in milliseconds.",
        minimum=100,
        maximum=_MILLISECONDS_OF_A_DAY,
    )
    lite_ttl_check_interval: int = option(
        120_000,
        "Interval at which idle lite topics are looked for, in milliseconds.",
        minimum=100,
        maximum=_MILLISECONDS_OF_A_DAY,
    )
    min_lite_ttl: int = option(
        900_000,
        "Minimum time for which a lite topic must be idle before it is removed, in milliseconds.",
        key="minLiteTTl",
        maximum=43_200 * 60_000,
    )

    # --- transactions ---------------------------------------------------------------------------
    transaction_time_out: int = option(
        6_000,
        "Age at which a half message is first checked with its producer, in milliseconds; also accepted as "
        "`transactionTimeout`.",
        maximum=_MILLISECONDS_OF_A_DAY,
        apache=ApacheRules(also="transactionTimeout"),
        runtime=True,
    )
    transaction_check_interval: int = option(
        60_000,
        "Interval between checks of half messages, in milliseconds.",
        minimum=10,
        maximum=_MILLISECONDS_OF_A_DAY,
        runtime=True,
    )
    transaction_check_max: int = option(
        15,
        "Number of checks after which a half message is moved to TRANS_CHECK_MAX_TIME_TOPIC.",
        minimum=1,
        maximum=1_000_000,
        runtime=True,
    )
    reject_transaction_message: bool = option(False, "Refuse half messages.", runtime=True)

    # --- delays ---------------------------------------------------------------------------------
    flush_delay_offset_interval: int = option(
        10_000,
        "Interval at which the progress of the delay levels is written to disk, in milliseconds.",
        minimum=100,
        maximum=_MILLISECONDS_OF_A_DAY,
    )
    timer_wheel_enable: bool = option(
        True, "Accept messages with arbitrary delays (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)."
    )
    timer_max_delay_sec: int = option(
        10 * 365 * 86_400,
        "Maximum delay in seconds. Messages with a longer delay are refused.",
        minimum=1,
        maximum=MAX_TIMER_DELAY_SECONDS,
        runtime=True,
    )
    recall_message_enable: bool = option(
        True, "Let producers recall waiting messages by using the handle that the send returned.", runtime=True
    )

    grpc_server_port: int = option(
        0, "Port of the gRPC endpoint for RocketMQ 5 clients. 0: no endpoint.", minimum=0, maximum=65_535
    )

    # --- connections ----------------------------------------------------------------------------
    server_channel_max_idle_time_seconds: int = option(
        120, "Number of seconds without traffic after which a connection is closed.", minimum=1, maximum=86_400
    )
    server_max_connections: int = option(
        MAX_CONNECTIONS,
        "Maximum number of open connections of a port; lower if `ulimit -n` requires it.",
        minimum=1,
    )

    unused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Apache's keys that are configured but have no effect in CometMQ, with their values as text."""

    @property
    def advertised(self) -> dict[str, Advertised]:
        """Addresses for clients by listener name. The empty name stands for all other clients, if their address is
        configured.

        :raises ConfigError: ``advertisedListeners`` is malformed.
        """
        try:
            return parse_advertised(self.advertised_listeners)
        except ValueError as error:
            raise ConfigError(f"advertisedListeners={self.advertised_listeners}: {error}") from None


class LiveConfig:
    """The configuration of a running broker; ``current`` is the current configuration.

    Components read ``current`` for each use. Components that cache derived values listen to ``on_change``.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.current = config
        self.on_change: list[Callable[[BrokerConfig], None]] = []

    def replace(self, config: BrokerConfig) -> None:
        """Replace the current configuration and notify the listeners."""
        self.current = config
        for listener in self.on_change:
            listener(config)


def with_host(config: BrokerConfig) -> BrokerConfig:
    """Return the configuration. If the broker's name or address is empty, it is filled in from this host.

    :raises ConfigError: ``advertisedListeners`` is malformed.
    """
    given = config.advertised.get(EVERY_CLIENT)
    ip = given.host if given else _without_brackets(config.broker_ip1) or own_ip()
    return dataclasses.replace(
        config,
        broker_ip1=ip,
        broker_ip2=_without_brackets(config.broker_ip2) or ip,
        broker_name=config.broker_name or socket.gethostname(),
    )


def ip_of_clients(config: BrokerConfig) -> str:
    """Return the IP address for records and message IDs; if ``brokerIP1`` is a name, resolve it.

    :raises ConfigError: the name has no address.
    """
    try:
        return ip_of(config.broker_ip1)
    except OSError as error:
        key = "advertisedListeners" if EVERY_CLIENT in config.advertised else "brokerIP1"
        raise ConfigError(
            f"{key}={config.broker_ip1[:_SHOWN_CHARS]} cannot be resolved: {reason_of(error)}",
            next_step="set it to an address, or to a name that resolves",
        ) from None


def _without_brackets(ip: str) -> str:
    """Remove blanks and IPv6 brackets from an address, and convert an IPv4-mapped IPv6 address to IPv4."""
    return unmapped(ip.strip().removeprefix("[").removesuffix("]"))


def load_broker_config(path: str | Path | None, **overrides: Any) -> tuple[BrokerConfig, list[str]]:
    """Read a ``broker.conf`` file; ``overrides`` are attributes from the command line.

    Return the configuration, and warnings about unknown keys and keys that have no effect.

    :raises ConfigError: the file cannot be read, or a value is not allowed.
    """
    loaded, warnings = load_with_tls(BrokerConfig, path, overrides=overrides, apache=apache_keys(BROKER))
    config = _checked(loaded)
    if config.broker_role == SYNC_MASTER and config.in_sync_replicas == 1:
        warnings.append(
            "brokerRole=SYNC_MASTER with inSyncReplicas=1: while no slave is in sync, only this broker has the "
            "messages that it acknowledges; set inSyncReplicas=2 to require a slave"
        )
    return config, warnings


def _checked(config: BrokerConfig) -> BrokerConfig:
    _ = config.advertised
    check_keys(config, has_role=config.broker_role != ASYNC_MASTER or config.broker_id != MASTER_ID)
    for address in split_addresses(config.namesrv_addr):
        _check_address("namesrvAddr", config.namesrv_addr, address)
    if config.broker_role == SLAVE and config.ha_master_address:
        _check_address("haMasterAddress", config.ha_master_address, config.ha_master_address)
    if config.broker_role == SLAVE and config.broker_id == MASTER_ID:
        raise ConfigError("brokerRole=SLAVE: a slave's brokerId must be greater than 0", next_step="set brokerId=1")
    if config.broker_role != SLAVE and config.broker_id != MASTER_ID:
        return dataclasses.replace(config, broker_id=MASTER_ID)  # as BrokerStartup does
    return config


def _check_address(key: str, value: str, address: str) -> None:
    try:
        parse_address(address)
    except ValueError as error:
        raise ConfigError(f"{key}={value[:_SHOWN_CHARS]}: {error}") from None
