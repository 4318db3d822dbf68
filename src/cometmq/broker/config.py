"""Configuration of a broker: Apache's ``broker.conf`` keys that mean something here.

One flat dataclass, since Apache's file is flat: ``BrokerConfig`` and ``NettyServerConfig`` here, on top of
``MessageStoreConfig`` (:class:`~cometmq.store.config.StoreConfig`), which the store takes as it is.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from cometmq.apache_keys import BROKER, apache_keys
from cometmq.auth.options import SecurityOptions
from cometmq.broker.limits import MAX_TIMER_DELAY_SECONDS, MAX_TRANSFER_BYTES
from cometmq.errors import reason_of
from cometmq.limits import MAX_CONNECTIONS, MAX_FRAME_BYTES, MAX_MESSAGE_BYTES, MAX_QUERY_MESSAGES
from cometmq.log_level import LOG_LEVEL_DOC, LOG_LEVELS
from cometmq.message.hosts import ip_of, own_ip, parse_address, split_addresses, unmapped
from cometmq.message.listeners import EVERY_CLIENT, Advertised, parse_advertised
from cometmq.message.names import MASTER_ID, TRACE_TOPIC
from cometmq.metrics.options import MetricsOptions
from cometmq.options import ApacheRules, ConfigError, option
from cometmq.options.forms import one_of
from cometmq.remoting.tls.options import load_with_tls
from cometmq.store.config import StoreConfig

ASYNC_MASTER: Final = "ASYNC_MASTER"
SYNC_MASTER: Final = "SYNC_MASTER"
SLAVE: Final = "SLAVE"

_MILLISECONDS_OF_A_DAY: Final = 86_400_000
_SHOWN_CHARS: Final = 1_000


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerConfig(SecurityOptions, MetricsOptions, StoreConfig):
    """The options of one broker process, those of its store included."""

    # --- who and where --------------------------------------------------------------------------
    broker_cluster_name: str = option(
        "DefaultCluster", "Cluster that this broker belongs to.", apache=ApacheRules(empty="DefaultCluster")
    )
    broker_name: str = option("", "Name of this broker. Empty: the host's name.")
    broker_id: int = option(
        MASTER_ID, "Number in the set of brokers with one name: 0 is the master, others are slaves.", maximum=2**63 - 1
    )
    broker_role: str = option(
        ASYNC_MASTER,
        "Role in replication: a SYNC_MASTER answers sends once a slave has the message, too; a SLAVE follows a master.",
        form=one_of(ASYNC_MASTER, SYNC_MASTER, SLAVE),
    )
    broker_ip1: str = option(
        "",
        "Address or name that clients reach this broker at; the address is inside message ids. Empty: found out.",
        key="brokerIP1",
        apache=ApacheRules(stripped=True),
    )
    broker_ip2: str = option(
        "",
        "Address that slaves reach this broker at. Empty: brokerIP1.",
        key="brokerIP2",
        apache=ApacheRules(stripped=True),
    )
    advertised_listeners: str = option(
        "",
        "Addresses that clients connect to, joined by commas: HOST[:PORT] for all of them, instead of brokerIP1, and "
        "LISTENER=HOST[:PORT] for those of a listener of the nameservers. Without PORT it is listenPort.",
    )
    bind_address: str = option("0.0.0.0", "Address to listen on; empty: every one, IPv4 and IPv6.")
    listen_port: int = option(
        10_911, "Port for clients and tools; 0 takes a free one.", maximum=65_535, apache=ApacheRules(outside="refused")
    )
    namesrv_addr: str = option(
        "",
        "Nameservers to register at, host:port joined by semicolons; empty for none.",
        apache=ApacheRules(stripped=True),
    )
    register_name_server_period: int = option(
        30_000,
        "Milliseconds between two registrations; less than 10 s counts as 10 s, more than 60 s as 60 s.",
        minimum=1,
    )
    register_broker_timeout_mills: int = option(
        6_000, "Milliseconds that a nameserver has to answer a registration.", minimum=100, maximum=60_000
    )
    compressed_register: bool = option(False, "Compress registrations.")

    log_level: str = option("", LOG_LEVEL_DOC, form=one_of(*LOG_LEVELS), runtime=True)
    metrics_per_queue: bool = option(False, "Tell the lag of groups by queue, too.", runtime=True)
    metrics_otel_cardinality_limit: int = option(
        2_000,
        "Series of one family of metrics, such as topics, or pairs of topic and group; all others have one together.",
        minimum=1,
        maximum=250_000,
        runtime=True,
    )
    hook_names: str = option("", "Hooks to use: entry points of the group cometmq.hooks, joined by commas.")

    # --- topics and groups ----------------------------------------------------------------------
    auto_create_topic_enable: bool = option(True, "Make a topic when the first message is sent to it.", runtime=True)
    default_topic_queue_nums: int = option(
        8, "Queues of a topic that is made so, if the producer asks for no less.", minimum=1, maximum=1024
    )
    cluster_topic_enable: bool = option(True, "Let the topic with the cluster's name be read and written.")
    broker_topic_enable: bool = option(True, "Let the topic with the broker's name be read and written.")
    trace_topic_enable: bool = option(False, "Make the topic for message traces.")
    msg_trace_topic_name: str = option(TRACE_TOPIC, "Name of the topic for message traces.")
    auto_create_subscription_group: bool = option(True, "Make a consumer group on its first use.", runtime=True)
    broker_permission: int = option(6, "4 to be read, 2 to be written, 6 for both.", minimum=0, maximum=6, runtime=True)

    # --- sends ----------------------------------------------------------------------------------
    max_message_size: int = option(
        MAX_MESSAGE_BYTES, "Bytes of the largest body.", minimum=1, maximum=MAX_FRAME_BYTES // 2
    )
    sync_flush_timeout: int = option(
        5_000, "SYNC_FLUSH: milliseconds until a send is answered as stored but not flushed.", minimum=1
    )
    store_reply_message_enable: bool = option(
        True, "Store replies to requests, beside handing them to their requesters.", runtime=True
    )
    region_id: str = option("DefaultRegion", "Region that answers to sends name (MSG_REGION).")
    trace_on: bool = option(True, "Tell clients that they may trace messages (TRACE_ON).")
    start_accept_send_request_time_stamp: int = option(
        0, "Milliseconds since 1970 before which sends are refused.", maximum=2**63 - 1
    )

    # --- pulls ----------------------------------------------------------------------------------
    long_polling_enable: bool = option(True, "Let pulls wait for messages as long as they ask for.", runtime=True)
    short_polling_time_mills: int = option(
        1_000, "Milliseconds that pulls wait when longPollingEnable is off.", maximum=60_000, runtime=True
    )
    max_transfer_bytes_on_message_in_memory: int = option(
        1_048_576,
        "Bytes of messages in one answer to a pull; a pull may ask for fewer.",
        minimum=1_024,
        maximum=8_388_608,
        runtime=True,
    )
    max_transfer_count_on_message_in_memory: int = option(
        1_024, "Messages in one answer to a pull.", minimum=1, maximum=16_384, runtime=True
    )
    access_message_in_memory_max_ratio: int = option(
        40,
        "Per cent of memory: a new group starts at a queue's first message if the log has not grown more since, and "
        "with slaveReadEnable consumers that are farther behind go to a slave.",
        minimum=0,
        maximum=95,
        runtime=True,
    )
    default_query_max_num: int = option(
        32, "Messages found by one query by unique key.", minimum=1, maximum=MAX_QUERY_MESSAGES
    )
    flush_consumer_offset_interval: int = option(
        5_000, "Milliseconds between two writes of the consumer offsets.", minimum=100, maximum=_MILLISECONDS_OF_A_DAY
    )

    # --- pops -----------------------------------------------------------------------------------
    max_pop_polling_size: int = option(
        100_000, "Pops that wait for messages, of all groups.", minimum=0, maximum=10_000_000, runtime=True
    )
    pop_polling_size: int = option(
        1_024, "Pops of one group and topic that wait for messages.", minimum=0, maximum=10_000_000, runtime=True
    )
    enable_pop_message_threshold: bool = option(
        False, "Pops find nothing in a queue with popInflightMessageThreshold unacknowledged messages.", runtime=True
    )
    pop_inflight_message_threshold: int = option(
        10_000,
        "Messages of one queue and group that are popped and not acknowledged, with enablePopMessageThreshold.",
        minimum=1,
        maximum=2**31 - 1,
        runtime=True,
    )

    default_message_request_mode: str = option(
        "PULL",
        "Consumption of clients whose queues the broker assigns, unless a mode is set: PULL or POP.",
        form=one_of("PULL", "POP"),
        runtime=True,
    )
    default_pop_share_queue_num: int = option(
        -1,
        "POP: so many further members of a group pop from the queues of each member. 0 or less: all from all.",
        minimum=-1,
        maximum=2**31 - 1,
        runtime=True,
    )

    # --- replication ----------------------------------------------------------------------------
    ha_listen_port: int = option(
        0, "Port for slaves. 0: the one after listenPort, or any where that is 0.", maximum=65_535
    )
    ha_master_address: str = option(
        "",
        "SLAVE: host:port that the master's log comes from. Empty: what the nameservers say.",
        apache=ApacheRules(stripped=True),
    )
    ha_send_heartbeat_interval: int = option(
        5_000, "Milliseconds after which a slave gets a heartbeat, if no transfer, and its master a report.", minimum=1
    )
    ha_housekeeping_interval: int = option(
        20_000, "Milliseconds of silence after which master and slave close their connection.", minimum=1
    )
    ha_transfer_batch_size: int = option(
        32_768, "Bytes of the log in one transfer to a slave.", minimum=1_024, maximum=MAX_TRANSFER_BYTES
    )
    ha_slave_fallbehind_max: int = option(
        268_435_456, "SYNC_MASTER: bytes behind from which on a slave is not in sync: no send waits for it.", minimum=1
    )
    in_sync_replicas: int = option(
        2,
        "SYNC_MASTER: brokers that have a message when it is answered as stored, this one among them: "
        "1 waits for no slave, 2 for one, 3 for two.",
        minimum=1,
    )
    enable_auto_in_sync_replicas: bool = option(
        False, "SYNC_MASTER: as many as are in sync are enough while these are fewer than inSyncReplicas."
    )
    min_in_sync_replicas: int = option(1, "With enableAutoInSyncReplicas: fewer are never enough.", minimum=1)
    slave_timeout: int = option(
        3_000, "SYNC_MASTER: milliseconds until a send is answered as stored but not at a slave.", minimum=1
    )
    offset_check_in_slave: bool = option(
        False,
        "SLAVE: answer pulls beyond the ends of a queue with the offset to go on with, as a master does.",
        runtime=True,
    )
    slave_read_enable: bool = option(
        False, "Send consumers that are far behind to a slave, as their group says.", runtime=True
    )

    # --- filters --------------------------------------------------------------------------------
    enable_property_filter: bool = option(
        False, "Let consumers subscribe by SQL92 expressions on properties.", runtime=True
    )
    filter_support_retry: bool = option(
        False,
        "Filter a pull by SQL92 from a retry topic by what the group subscribes to in each message's own topic.",
        runtime=True,
    )
    filter_data_clean_time_span: int = option(
        _MILLISECONDS_OF_A_DAY,
        "Milliseconds after which the SQL92 filter of a group that has left is forgotten.",
        maximum=2**63 - 1,
        runtime=True,
    )
    max_error_rate_of_bloom_filter: int = option(
        20, "Per cent; for the bits that consumerFilter.json keeps for Apache's broker.", minimum=1, maximum=99
    )
    expect_consumer_num_use_filter: int = option(
        32, "Groups with filters for one topic, for these bits.", minimum=1, maximum=65_536
    )

    # --- transactions ---------------------------------------------------------------------------
    transaction_time_out: int = option(
        6_000,
        "Milliseconds that a half message is old before its producer is asked about it; also understood as "
        "`transactionTimeout`.",
        maximum=_MILLISECONDS_OF_A_DAY,
        apache=ApacheRules(also="transactionTimeout"),
        runtime=True,
    )
    transaction_check_interval: int = option(
        60_000,
        "Milliseconds between two rounds of asking about half messages.",
        minimum=10,
        maximum=_MILLISECONDS_OF_A_DAY,
        runtime=True,
    )
    transaction_check_max: int = option(
        15,
        "Rounds after which a half message is given up, to TRANS_CHECK_MAX_TIME_TOPIC.",
        minimum=1,
        maximum=1_000_000,
        runtime=True,
    )
    reject_transaction_message: bool = option(False, "Refuse half messages.", runtime=True)

    # --- delays ---------------------------------------------------------------------------------
    flush_delay_offset_interval: int = option(
        10_000,
        "Milliseconds between two writes of how far delayed messages are delivered.",
        minimum=100,
        maximum=_MILLISECONDS_OF_A_DAY,
    )

    # --- any delay ------------------------------------------------------------------------------
    timer_wheel_enable: bool = option(True, "Take messages with a delay of their own (TIMER_DELAY_SEC and the like).")
    timer_max_delay_sec: int = option(
        10 * 365 * 86_400,
        "Seconds that a message with a delay of its own may wait; more is refused.",
        minimum=1,
        maximum=MAX_TIMER_DELAY_SECONDS,
        runtime=True,
    )
    recall_message_enable: bool = option(
        True, "Let producers take back messages that wait, by the handle from their send.", runtime=True
    )

    grpc_server_port: int = option(
        0, "Port of the gRPC endpoint for clients of RocketMQ 5; 0: none.", minimum=0, maximum=65_535
    )

    # --- connections ----------------------------------------------------------------------------
    server_channel_max_idle_time_seconds: int = option(
        120, "Seconds without traffic after which a connection is closed.", minimum=1, maximum=86_400
    )
    server_max_connections: int = option(
        MAX_CONNECTIONS, "Connections open at the same time; fewer where `ulimit -n` allows less.", minimum=1
    )

    unused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Keys of Apache's that are set and have no effect here, with their values as text."""

    @property
    def advertised(self) -> dict[str, Advertised]:
        """The addresses for clients by listener; that for every client is under the empty name, if it is given.

        :raises ConfigError: ``advertisedListeners`` is not of its form.
        """
        try:
            return parse_advertised(self.advertised_listeners)
        except ValueError as error:
            raise ConfigError(f"advertisedListeners={self.advertised_listeners}: {error}") from None


class LiveConfig:
    """The configuration of a running broker: ``current`` is the one of this moment.

    A part reads ``current`` each time; a part that keeps something derived from it listens to ``on_change``.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.current = config
        self.on_change: list[Callable[[BrokerConfig], None]] = []

    def replace(self, config: BrokerConfig) -> None:
        """Use ``config`` from now on."""
        self.current = config
        for listener in self.on_change:
            listener(config)


def with_host(config: BrokerConfig) -> BrokerConfig:
    """Put the name and the address of this host where the configuration leaves them out.

    :raises ConfigError: ``advertisedListeners`` is not of its form.
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
    """The address in records and message ids of a broker; ``brokerIP1`` may be a name, which is looked up.

    :raises ConfigError: the name has no address.
    """
    try:
        return ip_of(config.broker_ip1)
    except OSError as error:
        key = "advertisedListeners" if EVERY_CLIENT in config.advertised else "brokerIP1"
        raise ConfigError(
            f"{key}={config.broker_ip1[:_SHOWN_CHARS]} has no address: {reason_of(error)}",
            next_step="give an address, or a name that resolves",
        ) from None


def _without_brackets(ip: str) -> str:
    """An address without blanks and the brackets of IPv6, and IPv4 that is mapped into IPv6 as IPv4."""
    return unmapped(ip.strip().removeprefix("[").removesuffix("]"))


def load_broker_config(path: str | Path | None, **overrides: Any) -> tuple[BrokerConfig, list[str]]:
    """Read a ``broker.conf``; ``overrides`` are attributes given on the command line.

    Returns the configuration and the warnings for unknown keys and for those without effect.

    :raises ConfigError: when the file cannot be read, or with file, line, value and allowed range.
    """
    loaded, warnings = load_with_tls(BrokerConfig, path, overrides=overrides, apache=apache_keys(BROKER))
    config = _checked(loaded)
    if config.broker_role == SYNC_MASTER and config.in_sync_replicas == 1:
        warnings.append("inSyncReplicas=1 with brokerRole=SYNC_MASTER: no send waits for a slave; 2 waits for one")
    return config, warnings


def _checked(config: BrokerConfig) -> BrokerConfig:
    _ = config.advertised
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
