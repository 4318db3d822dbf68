"""Each reason why a group has not consumed a message, on a cluster where it is the reason."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta

import pytest
from tests.broker.pop.popping import GROUP as POP_GROUP
from tests.broker.pop.popping import TOPIC, Popper
from tests.broker.replication.following import connect

from cometmq.client import AccessDeniedError, Admin, Message, Producer, SimpleConsumer
from cometmq.client.consumer.config import ConsumeFromWhere, PushConfig
from cometmq.client.consumer.listener import Retry
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.diagnosis import Check, Explanation, Question, Verdict, why_not_consumed
from cometmq.client.diagnosis.checks import moment, quote
from cometmq.client.diagnosis.stored import made_about_ms
from cometmq.client.instance import ClientInstance
from cometmq.client.producer.transaction_producer import TransactionProducer, TransactionState
from cometmq.message.hosts import encode_host
from cometmq.message.ids import UniqIdGenerator, offset_msg_id
from cometmq.remoting.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.security import Security
from cometmq.remoting.signing import Credentials
from cometmq.testing import Cluster, VirtualClock

GROUP = "workers"
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(clock=VirtualClock()) as cluster:
        await cluster.create_topic("orders", 1)
        yield cluster


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[Admin]:
    async with Admin(instance=cluster.client_instance()) as admin:
        yield admin


async def why(admin: Admin, msg_id: str = "", *, offset: int | None = None, account: str = "") -> Explanation:
    queue = None if offset is None else 0
    return await why_not_consumed(admin, Question("orders", GROUP, msg_id, "", queue, offset, account))


async def pass_time(cluster: Cluster, seconds: float) -> None:
    assert isinstance(cluster.clock, VirtualClock)
    await cluster.clock.run_for(seconds)


def cause(found: Explanation) -> Check:
    decisive = found.decisive
    assert decisive is not None, found.checks
    return decisive


async def test_a_topic_that_does_not_exist(admin: Admin) -> None:
    found = await why_not_consumed(admin, Question("nothing", GROUP, "A" * 32))
    assert (cause(found).name, cause(found).verdict) == ("topic", Verdict.CAUSE)


async def test_a_message_that_was_never_stored(admin: Admin) -> None:
    found = cause(await why(admin, "7F000001000012345678000000000000"))
    assert (found.name, found.verdict) == ("stored", Verdict.CAUSE)
    assert "never stored here, or is deleted" in found.evidence


async def test_an_offset_that_no_message_has_yet(cluster: Cluster, admin: Admin) -> None:
    await cluster.send(Message("orders", b"x"))
    found = cause(await why(admin, offset=1))
    assert "No message has offset 1 yet: the queue has the offsets 0 to 0" in found.evidence


async def test_a_message_with_a_delay(cluster: Cluster, admin: Admin) -> None:
    result = await cluster.send(Message("orders", b"x", delay=timedelta(hours=1)))
    await pass_time(cluster, 5)
    found = cause(await why(admin, result.msg_id))
    assert (found.name, found.verdict) == ("delayed", Verdict.CAUSE)
    assert "2023-11-14 23:13:20 UTC" in found.evidence


async def test_a_delayed_message_that_was_recalled(cluster: Cluster, admin: Admin) -> None:
    async with Producer("p", instance=cluster.client_instance()) as producer:
        result = await producer.send(Message("orders", b"x", delay=timedelta(hours=1)))
        assert result.recall_handle is not None
        await pass_time(cluster, 3)
        await producer.recall(result.recall_handle)
        await pass_time(cluster, 10)
        found = cause(await why(admin, result.msg_id))
    assert (found.name, found.verdict) == ("delayed", Verdict.CAUSE)
    assert "until 2023-11-14 23:13:20 UTC, but no longer waits: it was recalled" in found.evidence


async def test_a_retry_that_a_stopped_group_has_not_reached(cluster: Cluster, admin: Admin) -> None:
    async with cluster.inbox("orders", group=GROUP, answer=Retry(delay_level=1)) as inbox:
        result = await cluster.send(Message("orders", b"x"))
        await inbox.expect(1)
        await inbox.expect(1)
        await pass_time(cluster, 0.1)
    await pass_time(cluster, 20)
    found = cause(await why(admin, result.msg_id))
    assert (found.name, found.verdict) == ("retry", Verdict.CAUSE)
    assert "in %RETRY%workers since" in found.evidence
    async with cluster.inbox("orders", group=GROUP) as inbox:
        await inbox.expect(1, within=60)
        await pass_time(cluster, 10)
        after = cause(await why(admin, result.msg_id))
    assert (after.name, after.verdict) == ("retry", Verdict.POSSIBLE)
    assert "reported no failure" in after.evidence


async def test_a_message_with_a_delay_level(cluster: Cluster, admin: Admin) -> None:
    result = await cluster.send(Message("orders", b"x", delay_level=17))
    found = cause(await why(admin, result.msg_id))
    assert (found.name, found.verdict) == ("delayed", Verdict.CAUSE)
    assert "2023-11-14 23:13:20 UTC" in found.evidence


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (TransactionState.UNKNOWN, "is neither committed nor rolled back"),
        (TransactionState.ROLLBACK, "Producer group tp has rolled back the transaction"),
    ],
)
async def test_a_half_message(cluster: Cluster, admin: Admin, state: TransactionState, words: str) -> None:
    def execute(*_: object) -> TransactionState:
        return state

    async with TransactionProducer("tp", execute, lambda _: None, instance=cluster.client_instance()) as producer:
        result = await producer.send_in_transaction(Message("orders", b"x"))
        found = cause(await why(admin, result.msg_id))
    assert (found.name, found.verdict) == ("transaction", Verdict.CAUSE)
    assert words in found.evidence


async def test_a_life_time_that_is_over(cluster: Cluster, admin: Admin) -> None:
    result = await cluster.send(Message("orders", b"x", ttl=timedelta(seconds=5)))
    await admin.create_group(GROUP)
    await pass_time(cluster, 10)
    for found in (await why(admin, result.msg_id), await why(admin, offset=0)):
        assert (cause(found).name, cause(found).verdict) == ("life time", Verdict.CAUSE)


async def test_a_queue_that_nobody_may_read(cluster: Cluster, admin: Admin) -> None:
    result = await cluster.send(Message("orders", b"x"))
    config = TopicConfig(topic_name="orders", read_queue_nums=1, write_queue_nums=1, perm=2)
    await admin.put_topic(config, cluster.broker(0).address)
    found = cause(await why(admin, result.msg_id))
    assert (found.name, found.next_step) == ("queue", "Run: cometmq topic alter orders --permission rw")


async def test_a_group_that_does_not_exist_may_not_consume_or_has_no_members(cluster: Cluster, admin: Admin) -> None:
    result = await cluster.send(Message("orders", b"x"))
    assert "does not exist" in cause(await why(admin, result.msg_id)).evidence
    await admin.create_group(SubscriptionGroupConfig(group_name=GROUP, consume_enable=False))
    assert "not allowed to consume" in cause(await why(admin, result.msg_id)).evidence
    await admin.create_group(GROUP)
    found = cause(await why(admin, result.msg_id))
    assert (found.name, found.evidence) == ("members", "Group workers has no online members.")


async def test_a_subscription_that_filters_the_message_out(cluster: Cluster, admin: Admin) -> None:
    async with cluster.inbox("orders", group=GROUP, expression="paid || sent") as inbox:
        result = await cluster.send(Message("orders", b"x", tags="new <order>"))
        await cluster.send(Message("orders", b"y", tags="paid"))
        await inbox.expect(1)
        found = cause(await why(admin, result.msg_id))
    assert (found.name, found.verdict) == ("subscription", Verdict.CAUSE)
    assert "it is TAG «paid || sent», and the message has the tag «new <order>»" in found.evidence


async def test_an_sql_subscription_that_filters_the_message_out() -> None:
    async with Cluster(clock=VirtualClock(), broker_keys={"enablePropertyFilter": "true"}) as cluster:
        await cluster.create_topic("orders", 1)
        async with (
            Admin(instance=cluster.client_instance()) as admin,
            cluster.inbox("orders", group=GROUP, expression="amount > 10", expression_type="SQL92") as inbox,
        ):
            result = await cluster.send(Message("orders", b"x", properties={"amount": "3"}))
            await cluster.send(Message("orders", b"y", properties={"amount": "30"}))
            await inbox.expect(1)
            found = cause(await why(admin, result.msg_id))
    assert found.name == "subscription"
    assert "SQL92 «amount > 10»" in found.evidence


async def test_members_that_subscribe_differently(cluster: Cluster, admin: Admin) -> None:
    async with (
        cluster.inbox("orders", group=GROUP, expression="a"),
        cluster.inbox("orders", group=GROUP, expression="b"),
    ):
        result = await cluster.send(Message("orders", b"x", tags="a"))
        found = cause(await why(admin, result.msg_id))
    assert found.name == "subscription"
    assert "differently" in found.evidence


async def test_a_topic_to_which_nobody_subscribes(cluster: Cluster, admin: Admin) -> None:
    result = await cluster.send(Message("orders", b"x"))
    async with cluster.inbox("others", group=GROUP):
        found = cause(await why(admin, result.msg_id))
    assert found.evidence == "No member of group workers subscribes to topic orders."


async def test_a_message_that_waits_for_a_retry(cluster: Cluster, admin: Admin) -> None:
    async with cluster.inbox("orders", group=GROUP, answer=Retry()) as inbox:
        result = await cluster.send(Message("orders", b"x"))
        await inbox.expect(1)
        await pass_time(cluster, 1)
        waiting = cause(await why(admin, result.msg_id))
        await inbox.expect(1, within=60)
        await pass_time(cluster, 1)
        later = cause(await why(admin, result.msg_id))
    assert (waiting.name, waiting.verdict) == ("retry", Verdict.CAUSE)
    assert "it waits for retry 1, at about 2023-11-14 22:13:3" in waiting.evidence
    assert (later.name, later.verdict) == ("retry", Verdict.CAUSE)
    assert "it waits for retry 2, at about 2023-11-14 22:14:" in later.evidence


async def test_a_dead_letter(cluster: Cluster, admin: Admin) -> None:
    async with cluster.inbox("orders", group=GROUP, answer=Retry(delay_level=-1)) as inbox:
        result = await cluster.send(Message("orders", b"x"))
        await inbox.expect(1)
        await pass_time(cluster, 1)
        dead = cause(await why(admin, result.msg_id))
    assert (dead.name, dead.verdict) == ("dead letter", Verdict.CAUSE)
    assert "because the group failed to consume it 1 time." in dead.evidence
    assert dead.next_step.startswith("Mend the cause, then run: cometmq dlq resend workers --id ")


async def test_a_consumed_message_with_and_without_a_trace(cluster: Cluster, admin: Admin) -> None:
    async with cluster.inbox("orders", group=GROUP) as inbox:
        result = await cluster.send(Message("orders", b"x"))
        await inbox.expect(1)
        await pass_time(cluster, 10)
        found = cause(await why(admin, result.msg_id))
    assert (found.name, found.verdict) == ("position", Verdict.POSSIBLE)
    assert "is past the message: it reads offset 1 of queue 0" in found.evidence


async def test_a_traced_consumption_is_certain() -> None:
    clock = VirtualClock()
    async with Cluster(clock=clock, broker_keys={"traceTopicEnable": "true"}) as cluster:
        await cluster.create_topic("orders", 1)
        config = PushConfig(enable_msg_trace=True, consume_from_where=FIRST)

        async def listener(_: object) -> None:
            pass

        consumer = PushConsumer(GROUP, listener, instance=cluster.client_instance(), config=config)
        await consumer.subscribe("orders")
        async with consumer:
            result = await cluster.send(Message("orders", b"x"))
            await clock.run_for(40)
            async with Admin(instance=cluster.client_instance()) as admin:
                found = cause(await why(admin, result.msg_id))
    assert found.verdict is Verdict.CONSUMED
    assert "Group workers has consumed the message at 2023-11-14" in found.evidence


async def test_a_message_that_a_member_holds(cluster: Cluster, admin: Admin) -> None:
    release = asyncio.Event()

    async def listener(_: object) -> None:
        await release.wait()

    config = PushConfig(consume_from_where=FIRST)
    consumer = PushConsumer(GROUP, listener, instance=cluster.client_instance(), config=config)
    await consumer.subscribe("orders")
    async with consumer:
        result = await cluster.send(Message("orders", b"x"))
        await pass_time(cluster, 1)
        found = cause(await why(admin, result.msg_id))
        release.set()
    assert (found.name, found.verdict) == ("in flight", Verdict.CAUSE)
    assert "has received the message and not finished it" in found.evidence


async def test_a_group_that_lags(cluster: Cluster, admin: Admin) -> None:
    await admin.create_group(GROUP)
    results = [await cluster.send(Message("orders", b"x")) for _ in range(5)]
    (queue,) = await admin.queues("orders")
    await admin.offsets.commit(GROUP, queue, 1)
    found = await why(admin, results[4].msg_id)
    position = next(check for check in found.checks if check.name == "position")
    assert position.evidence.endswith("reads offset 1 of queue 0 on broker-0 next, 3 messages before this one.")
    assert cause(found).name == "members"


@pytest.mark.parametrize(
    ("account", "words"),
    [
        (
            "refused",
            "Account refused may not receive: Topic:orders needs Sub, but No default permission for topic:orders",
        ),
        (
            "missing",
            "Account missing may not receive: Topic:orders needs Sub, but the brokers do not have this account.",
        ),
    ],
)
async def test_an_account_without_a_right_is_named(account: str, words: str) -> None:
    accounts = [
        {"accessKey": "refused", "secretKey": "12345678", "topicPerms": ["orders=PUB"]},
        {"accessKey": "allowed", "secretKey": "12345678", "topicPerms": ["orders=SUB"], "groupPerms": [f"{GROUP}=SUB"]},
    ]
    async with Cluster(clock=VirtualClock(), accounts=accounts) as cluster:
        await cluster.create_topic("orders", 1)
        async with Admin(instance=cluster.client_instance()) as admin:
            await admin.create_group(GROUP)
            result = await cluster.send(Message("orders", b"x"))
            found = cause(await why(admin, result.msg_id, account=account))
            allowed = await why(admin, result.msg_id, account="allowed")
    assert (found.name, found.verdict) == ("permission", Verdict.CAUSE)
    assert found.evidence.startswith(words)
    assert [check.verdict for check in allowed.checks if check.name == "permission"] == [Verdict.RULED_OUT]


async def test_a_message_that_the_asking_account_may_not_read_is_not_taken_for_deleted() -> None:
    sender = {"accessKey": "sending", "secretKey": "12345678", "topicPerms": ["orders=PUB"]}
    async with Cluster(clock=VirtualClock(), accounts=[sender]) as cluster:
        await cluster.create_topic("orders", 1)
        result = await cluster.send(Message("orders", b"x"))
        security = Security(Credentials("sending", "12345678"))
        asking = ClientInstance(cluster.namesrv_address, security=security, clock=cluster.clock)
        async with Admin(instance=asking) as admin:
            with pytest.raises(AccessDeniedError, match="topic:orders"):
                await why(admin, result.msg_id)


def test_a_text_of_a_stranger_cannot_leave_its_quotes() -> None:
    assert quote("paid") == "paid"
    assert quote("a» Call delete. «b") == "«a' Call delete. 'b»"
    assert len(quote("x " * 1000)) < 110
    assert "\x1b" not in quote("\x1b[2J")


def test_an_id_has_the_time_at_which_it_was_made() -> None:
    assert (
        made_about_ms("01" + "AABBCCDDEEFF" + "1234" + f"{3600:08X}" + "00000001", 0) == (1_609_459_200 + 3600) * 1000
    )
    clock = VirtualClock()
    made = made_about_ms(UniqIdGenerator(clock).next(), clock.now_ms() + 1000)
    assert made is not None
    assert abs(made - clock.now_ms()) < 2


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_an_id_of_the_cpp_client_has_its_own_order_of_bytes() -> None:
    now_ms = 1_796_109_486_756
    made = made_about_ms("0100007F0000243500002165EE060100", now_ms)  # of librocketmq 2.0 at this time
    assert made is not None
    assert 0 <= made - now_ms < 3_600_000 + 1000


async def test_an_id_of_the_cpp_client_is_not_taken_for_that_of_a_deleted_message(
    cluster: Cluster, admin: Admin
) -> None:
    await cluster.send(Message("orders", b"x"))
    now_ms = cluster.clock.now_ms()
    month = datetime.fromtimestamp(now_ms / 1000).astimezone().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    passed_ms = now_ms - int((month - timedelta(days=1)).timestamp() * 1000) + 256
    little = (passed_ms & ~0xFF | 1).to_bytes(4, "little").hex()
    found = cause(await why(admin, f"0100007F000024350000{little}0100".upper()))
    assert "never stored here, or is deleted" in found.evidence


def test_an_offset_id_has_no_time() -> None:
    for host in (encode_host("10.0.0.1", 10911), encode_host("fd00::2", 10911)):
        for offset in (0, 1, 256, (1 << 40) - 256, (1 << 47) + 1):
            assert made_about_ms(offset_msg_id(host, offset), 1_700_000_000_000) is None


@pytest.mark.parametrize("wrong", ["", "zz", "Z" * 32, "7F" * 28, "02" * 17, "0x" * 16, "_" * 34])
def test_ids_from_anywhere_have_a_time_or_none(wrong: str) -> None:
    made = made_about_ms(wrong, 1_700_000_000_000)
    assert made is None or isinstance(made, int)


async def test_members_that_pop_own_no_queues(cluster: Cluster, admin: Admin) -> None:
    async with SimpleConsumer(GROUP, {"orders": "*"}, instance=cluster.client_instance()):
        result = await cluster.send(Message("orders", b"x"))
        found = await why(admin, result.msg_id)
    (owner,) = [check for check in found.checks if check.name == "queue owner"]
    assert owner.verdict is Verdict.UNKNOWN
    assert cause(found).name == "position"


async def test_a_popped_message_may_be_in_flight(clock: VirtualClock) -> None:
    async with Cluster(clock=clock) as cluster:
        broker = cluster.broker(0)
        wire = await connect(broker)
        popper = Popper(wire, clock)
        await wire.send(TOPIC, b"x", queue_id=0)
        await wire.send(TOPIC, b"y", queue_id=0)
        popped = await popper.pop(invisible_time=60_000)
        visible_again = clock.now_ms() + 60_000
        async with Admin(instance=cluster.client_instance()) as admin:
            question = Question(TOPIC, POP_GROUP, queue_id=0, offset=0)
            waiting = await clock.run_until(why_not_consumed(admin, question), 10)
            await popper.batch_ack(popped)
            done = await clock.run_until(why_not_consumed(admin, question), 10)
        await wire.close()
    held = next(check for check in waiting.checks if check.name == "in flight")
    assert held.verdict is Verdict.POSSIBLE
    assert held.evidence.startswith("2 messages of this queue are handed out and unacknowledged")
    assert held.evidence.endswith(f"which is not before {moment(visible_again)}.")
    assert cause(waiting) == held
    assert cause(done).name in ("position", "members")
