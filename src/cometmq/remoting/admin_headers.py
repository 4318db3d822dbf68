"""Typed headers for administration and nameserver requests; see :mod:`cometmq.remoting.headers`."""

from __future__ import annotations

from cometmq.remoting.headers import Header, Int32, Int64


class CloneGroupOffsetRequestHeader(Header):
    """Request header for CLONE_GROUP_OFFSET (314), which copies one group's offsets to another group."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class ConsumeMessageDirectlyResultRequestHeader(Header):
    """Request header for CONSUME_MESSAGE_DIRECTLY (309), which delivers a message to one client in a group."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


class CreateTopicRequestHeader(Header):
    """Request header for UPDATE_AND_CREATE_TOPIC (17)."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    order: bool
    topic_sys_flag: Int32 | None = None
    attributes: str | None = None
    """Attribute changes, for example ``+message.type=FIFO``; sent by 5.x tools."""


class DeleteSubscriptionGroupRequestHeader(Header):
    """Request header for DELETE_SUBSCRIPTIONGROUP (207)."""

    group_name: str
    remove_offset: bool = False


class DeleteTopicRequestHeader(Header):
    """Request header for DELETE_TOPIC_IN_BROKER (215)."""

    topic: str


class GetBrokerConfigResponseHeader(Header):
    """Response header for GET_BROKER_CONFIG (26), which contains the configuration's version."""

    version: str


class GetConsumeStatsInBrokerHeader(Header):
    """Request header for GET_BROKER_CONSUME_STATS (317)."""

    is_order: bool


class GetConsumeStatsRequestHeader(Header):
    """Request header for GET_CONSUME_STATS (208)."""

    consumer_group: str
    topic: str | None = None


class GetConsumerConnectionListRequestHeader(Header):
    """Request header for GET_CONSUMER_CONNECTION_LIST (203)."""

    consumer_group: str


class GetConsumerRunningInfoRequestHeader(Header):
    """Request header for GET_CONSUMER_RUNNING_INFO (307)."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class GetConsumerStatusRequestHeader(Header):
    """Request header for GET_CONSUMER_STATUS_FROM_CLIENT (221) and INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223)."""

    topic: str
    group: str
    client_addr: str | None = None


class GetOpenTransactionsRequestHeader(Header):
    """Request header for GET_OPEN_TRANSACTIONS (30037), a CometMQ extension."""

    offset: Int64 = 0
    max_num: Int32 = 100
    group: str | None = None


class GetProducerConnectionListRequestHeader(Header):
    """Request header for GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class GetTopicStatsInfoRequestHeader(Header):
    """Request header for GET_TOPIC_STATS_INFO (202)."""

    topic: str


class GetTopicsByClusterRequestHeader(Header):
    """Request header for GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


class GetWaitingMessagesRequestHeader(Header):
    """Request header for GET_WAITING_MESSAGES (30038), a CometMQ extension."""

    begin_time: Int64 = 0
    position: Int64 = 0
    end_time: Int64 = 2**63 - 1
    """If set, only messages due before this time are listed."""
    topic: str | None = None
    max_num: Int32 = 100


class GetTopicConfigRequestHeader(Header):
    """Request header for GET_TOPIC_CONFIG (351), introduced in 5.x."""

    topic: str


class GetSubscriptionGroupConfigRequestHeader(Header):
    """Request header for GET_SUBSCRIPTIONGROUP_CONFIG (352), introduced in 5.x."""

    group: str


class QueryTopicsByConsumerRequestHeader(Header):
    """Request header for QUERY_TOPICS_BY_CONSUMER (343), introduced in 5.x."""

    group: str


class QueryConsumeQueueRequestHeader(Header):
    """Request header for QUERY_CONSUME_QUEUE (321)."""

    topic: str | None = None
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None


class QueryConsumeTimeSpanRequestHeader(Header):
    """Request header for QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


class QueryCorrectionOffsetHeader(Header):
    """Request header for QUERY_CORRECTION_OFFSET (308)."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


class QueryTopicConsumeByWhoRequestHeader(Header):
    """Request header for QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    topic: str


class ResetOffsetRequestHeader(Header):
    """Request header for RESET_CONSUMER_CLIENT_OFFSET (220) and INVOKE_BROKER_TO_RESET_OFFSET (222)."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool


class ResumeCheckHalfMessageRequestHeader(Header):
    """Request header for RESUME_CHECK_HALF_MESSAGE (323)."""

    msg_id: str | None = None


class ViewBrokerStatsDataRequestHeader(Header):
    """Request header for VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


class AddWritePermOfBrokerRequestHeader(Header):
    """Request header for ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


class AddWritePermOfBrokerResponseHeader(Header):
    """Response header for ADD_WRITE_PERM_OF_BROKER (327)."""

    add_topic_count: int


class DeleteKVConfigRequestHeader(Header):
    """Request header for DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


class DeleteTopicFromNamesrvRequestHeader(Header):
    """Request header for DELETE_TOPIC_IN_NAMESRV (216)."""

    topic: str
    cluster_name: str | None = None


class GetKVConfigRequestHeader(Header):
    """Request header for GET_KV_CONFIG (101)."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(Header):
    """Response header for GET_KV_CONFIG (101)."""

    value: str | None = None


class GetKVListByNamespaceRequestHeader(Header):
    """Request header for GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


class PutKVConfigRequestHeader(Header):
    """Request header for PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str


class QueryDataVersionRequestHeader(Header):
    """Request header for QUERY_DATA_VERSION (322); the body is a DataVersion."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponseHeader(Header):
    """Response header for QUERY_DATA_VERSION (322)."""

    changed: bool


class RegisterBrokerRequestHeader(Header):
    """Request header for REGISTER_BROKER (103); ``bodyCrc32`` is 0 or the 31-bit CRC32 of the body.

    ``listenerAddrs`` is CometMQ's own field: ``name=host:port`` pairs joined by commas
    (:mod:`cometmq.message.listeners`).
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int32 | None = None
    listener_addrs: str | None = None


class RegisterBrokerResponseHeader(Header):
    """Response header for REGISTER_BROKER (103), with the master's addresses if the broker is a slave."""

    ha_server_addr: str | None = None
    master_addr: str | None = None
    rival_addr: str | None = None
    """The address of another live broker with the same name and id (CometMQ's own field)."""
    rival_state_version: Int64 | None = None
    """Its ``stateVersion``, if it is higher, so that this registration is ignored (CometMQ's own field)."""


class UnRegisterBrokerRequestHeader(Header):
    """Request header for UNREGISTER_BROKER (104)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class WipeWritePermOfBrokerRequestHeader(Header):
    """Request header for WIPE_WRITE_PERM_OF_BROKER (205)."""

    broker_name: str


class WipeWritePermOfBrokerResponseHeader(Header):
    """Response header for WIPE_WRITE_PERM_OF_BROKER (205)."""

    wipe_topic_count: int


class CreateAccessConfigRequestHeader(Header):
    """Request header for UPDATE_AND_CREATE_ACL_CONFIG (50), which sets an ACL 1.0 account; lists are separated by
    commas.
    """

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class DeleteAccessConfigRequestHeader(Header):
    """Request header for DELETE_ACL_CONFIG (51)."""

    access_key: str


class UpdateGlobalWhiteAddrsConfigRequestHeader(Header):
    """Request header for UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53), with a comma-separated list of addresses and a file."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


class GetBrokerAclConfigResponseHeader(Header):
    """Response header for GET_BROKER_CLUSTER_ACL_INFO (52)."""

    version: str
    all_acl_file_version: str
    broker_name: str
    broker_addr: str
    cluster_name: str


class CreateUserRequestHeader(Header):
    """Request header for AUTH_CREATE_USER (3001)."""

    username: str = ""


class UpdateUserRequestHeader(Header):
    """Request header for AUTH_UPDATE_USER (3002)."""

    username: str = ""


class DeleteUserRequestHeader(Header):
    """Request header for AUTH_DELETE_USER (3003)."""

    username: str = ""


class GetUserRequestHeader(Header):
    """Request header for AUTH_GET_USER (3004)."""

    username: str = ""


class ListUsersRequestHeader(Header):
    """Request header for AUTH_LIST_USER (3005)."""

    filter: str | None = None


class CreateAclRequestHeader(Header):
    """Request header for AUTH_CREATE_ACL (3006); the subject is ``User:NAME``."""

    subject: str = ""


class UpdateAclRequestHeader(Header):
    """Request header for AUTH_UPDATE_ACL (3007); the subject is ``User:NAME``."""

    subject: str = ""


class DeleteAclRequestHeader(Header):
    """Request header for AUTH_DELETE_ACL (3008), which deletes one resource's entry or all policies of
    ``User:NAME``.
    """

    subject: str = ""
    policy_type: str | None = None
    resource: str | None = None


class GetAclRequestHeader(Header):
    """Request header for AUTH_GET_ACL (3009); the subject is ``User:NAME``."""

    subject: str = ""


class ListAclsRequestHeader(Header):
    """Request header for AUTH_LIST_ACL (3010)."""

    subject_filter: str | None = None
    resource_filter: str | None = None


class PutQuotaRequestHeader(Header):
    """Request header for PUT_QUOTA (30050), which sets the given limits; -1 removes a limit."""

    subject: str
    messages_in: Int64 | None = None
    bytes_in: Int64 | None = None
    messages_out: Int64 | None = None
    bytes_out: Int64 | None = None
    connections: Int64 | None = None
    topics: Int64 | None = None


class GetQuotasRequestHeader(Header):
    """Request header for GET_QUOTAS (30051), which returns all quotas, one subject's quota, or all subjects' current
    usage.
    """

    subject: str | None = None
    each: bool = False


class DeleteQuotaRequestHeader(Header):
    """Request header for DELETE_QUOTA (30052)."""

    subject: str
