"""The compiled core takes the sends of an account exactly when Python would: signed, to topics it may publish to."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.broker.turn.side_by_side import SideBySide
from tests.broker.turn.test_plain_sends import PROPERTIES, fields

from cometmq.core import CORE
from cometmq.message.batch import BatchPiece, encode_batch
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.frame import JSON, ROCKETMQ
from cometmq.remoting.signing import Credentials, Stamps

pytestmark = pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")

SHOP = Credentials("shop-account", "secret-of-shop")
READER = Credentials("reader-account", "secret-of-reader")
OPERATORS = Credentials("operators", "secret-of-operators")
ACCOUNTS = """
accounts:
- {accessKey: operators, secretKey: secret-of-operators, admin: true}
- {accessKey: shop-account, secretKey: secret-of-shop, topicPerms: [T=PUB, U=SUB]}
- {accessKey: reader-account, secretKey: secret-of-reader, topicPerms: [T=SUB], whiteRemoteAddress: 10.1.2.3}
"""


def signed(
    opaque: int,
    by: Credentials | None,
    *,
    code: RequestCode = RequestCode.SEND_MESSAGE_V2,
    serialize: int = JSON,
    body: bytes = b"hello",
    **changed: Any,
) -> RemotingCommand:
    """A send with its signature."""
    command = RemotingCommand(
        code,
        opaque,
        0,
        "JAVA",
        ext_fields=fields(**changed),
        body=body,
        serialize_type=serialize,
    )
    if by is not None:
        by.sign(command)
    return command


def signed_batch(opaque: int, by: Credentials | None, messages: int = 3, **changed: Any) -> RemotingCommand:
    """A batch with its signature."""
    body = encode_batch(BatchPiece(0, b"%d" % number, f"KEYS\x01k{number}") for number in range(messages))
    changed = {"body": body, "properties": "WAIT\x01true", "batch": "true"} | changed
    return signed(opaque, by, code=RequestCode.SEND_BATCH_MESSAGE, **changed)


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SideBySide:
    accounts = tmp_path / "conf" / "plain_acl.yml"
    accounts.parent.mkdir()
    accounts.write_text(ACCOUNTS)
    accounts.chmod(0o600)
    both = SideBySide(tmp_path, connections=3, acl_enable=True, acl_path=str(accounts.parent))
    await both.start(monkeypatch)
    opened = [signed(at, OPERATORS, topic=topic, queueId=str(at % 4)) for at in range(4) for topic in ("T", "U")]
    both.receive(0, b"".join(command.encode() for command in opened))
    both.end_round()
    return both


async def test_the_sends_of_an_account_are_the_cores(pair: SideBySide, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.receive(1, signed(1, SHOP).encode())
    pair.end_round()

    def refuse(*_: Any) -> Any:
        raise AssertionError("Python puts what the core should take")

    with monkeypatch.context() as patched:
        patched.setattr(pair.compiled.broker.turn, "put", refuse)
        for serialize in (JSON, ROCKETMQ):
            commands = [signed(at, SHOP, serialize=serialize, queueId=str(at % 4)) for at in range(8)]
            pair.receive(1, b"".join(command.encode() for command in commands))
        pair.end_round()
    await pair.stop()


async def test_the_batches_of_an_account_are_the_cores(pair: SideBySide, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.receive(1, signed(1, SHOP).encode())
    pair.end_round()

    def refuse(*_: Any) -> Any:
        raise AssertionError("Python puts what the core should take")

    with monkeypatch.context() as patched:
        for name in ("put", "all_or_none"):
            patched.setattr(pair.compiled.broker.turn, name, refuse)
        for serialize in (JSON, ROCKETMQ):
            commands = [
                (signed_batch if at % 3 else signed)(at, SHOP, serialize=serialize, queueId=str(at % 4))
                for at in range(20)
            ]
            commands += [signed_batch(20, SHOP, 900, serialize=serialize)]
            pair.receive(1, b"".join(command.encode() for command in commands))
        pair.end_round()
    await pair.stop()


async def test_whoever_else_sends_batches_is_denied_alike(pair: SideBySide) -> None:
    pair.receive(1, signed(1, SHOP).encode())
    pair.end_round()
    for serialize in (JSON, ROCKETMQ):
        good, spoilt = (signed_batch(2, SHOP, serialize=serialize) for _ in range(2))
        spoilt.body = spoilt.body.replace(b"k1", b"k7")
        for command in (
            signed_batch(3, None, serialize=serialize),
            signed_batch(4, READER, serialize=serialize),
            signed_batch(5, SHOP, topic="U", serialize=serialize),
            signed_batch(6, SHOP, topic="V", serialize=serialize),
            spoilt,
        ):
            pair.receive(1, good.encode() + command.encode() + good.encode())
            pair.end_round(command)
    await pair.stop()


async def test_a_send_with_a_stamp_is_the_cores_once(pair: SideBySide, monkeypatch: pytest.MonkeyPatch) -> None:
    for side in pair.sides:
        await side.clock.run_for(1)
    stamps = Stamps(pair.compiled.clock.now_ms)
    frames = []
    for at in range(12):
        command = signed(at, None, serialize=(JSON, ROCKETMQ)[at % 2], queueId=str(at % 4))
        SHOP.sign(command, stamps.next())
        frames.append(command.encode())
    pair.receive(1, frames[0])
    pair.end_round()

    def refuse(*_: Any) -> Any:
        raise AssertionError("Python puts what the core should take")

    with monkeypatch.context() as patched:
        patched.setattr(pair.compiled.broker.turn, "put", refuse)
        pair.receive(1, b"".join(frames[1:]))
        pair.end_round()
    for connection in (1, pair.connect()):
        pair.receive(connection, b"".join(frames))
        pair.end_round("all again")
    await pair.stop()


async def test_whoever_else_sends_is_denied_alike(pair: SideBySide) -> None:
    pair.receive(1, signed(1, SHOP).encode())
    pair.end_round()
    cases: list[tuple[str, RemotingCommand]] = [
        ("nobody", signed(2, None)),
        ("a stranger", signed(3, Credentials("stranger", "whatever"))),
        ("the wrong secret", signed(4, Credentials("shop-account", "another-secret"))),
        ("another account", signed(5, READER)),
        ("a topic to read", signed(6, SHOP, topic="U")),
        ("an unknown topic", signed(7, SHOP, topic="V")),
        ("an administrator", signed(8, OPERATORS, topic="U")),
        ("a token", signed(9, Credentials("shop-account", "secret-of-shop", "token"))),
    ]
    spoilt: dict[str, dict[str, Any]] = {
        "another body": {"body": b"hellO"},
        "no signature": {"Signature": None},
        "an empty signature": {"Signature": ""},
        "a signature of other bits": {"Signature": "qOfz7esXWCKLFpaIK2xYzHz9GVd="},
        "another topic than was signed": {"b": "U"},
        "another property than was signed": {"i": PROPERTIES + "\x02x\x01y"},
        "a field that was not signed": {"zz": "1"},
        "an access key more": {"accessKey": "operators"},
        "the access key of another": {"AccessKey": "operators"},
    }
    for name, spoil in spoilt.items():
        command = signed(20 + len(cases), SHOP)
        for field, value in spoil.items():
            if field == "body":
                command.body = value
            elif value is None:
                del command.ext_fields[field]
            else:
                command.ext_fields[field] = value
        cases.append((name, command))
    random.Random(3).shuffle(cases)
    for name, command in cases:
        for serialize in (JSON, ROCKETMQ):
            command.serialize_type = serialize
            for connection in (1, pair.connect()):
                pair.receive(connection, command.encode())
                pair.end_round(name)
    await pair.stop()


async def test_a_denied_send_between_others_is_denied_alone(pair: SideBySide) -> None:
    pair.receive(1, signed(1, SHOP).encode())
    pair.end_round()
    opaques = iter(range(2, 10_000))
    for before in (0, 1, 2, 6, 7, 8, 9):
        for name, by, topic in (
            ("the wrong secret", Credentials("shop-account", "another-secret"), "T"),
            ("another account", READER, "T"),
            ("nobody", None, "T"),
            ("a topic to read", SHOP, "U"),
            ("an unknown topic", SHOP, "V"),
        ):
            for serialize in (JSON, ROCKETMQ):
                senders = [(SHOP, "T")] * before + [(by, topic)] + [(SHOP, "T")] * 3
                sends = [signed(next(opaques), who, topic=to, serialize=serialize) for who, to in senders]
                pair.receive(1, b"".join(command.encode() for command in sends))
                pair.end_round(f"{name} after {before}")
    assert b"hello" in (await pair.python.stop())["commitlog/00000000000000000000"]
    await pair.compiled.stop()


async def test_bodies_of_every_length_are_signed_alike(pair: SideBySide, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.receive(1, signed(1, SHOP).encode())
    pair.end_round()

    def refuse(*_: Any) -> Any:
        raise AssertionError("Python puts what the core should take")

    lengths = [*range(140), 4_095, 4_096, 4_097, 4_159, 4_160, 4_161, 20_000]
    commands = [signed(2 + at, SHOP, body=b"b" * length) for at, length in enumerate(lengths)]
    with monkeypatch.context() as patched:
        patched.setattr(pair.compiled.broker.turn, "put", refuse)
        for at in range(0, len(commands), 8):
            pair.receive(1, b"".join(command.encode() for command in commands[at : at + 8]))
        pair.end_round()
    await pair.stop()


async def test_a_field_twice_is_checked_as_python_reads_it(pair: SideBySide) -> None:
    frame = signed(1, SHOP).encode()
    pair.receive(1, frame)
    for old, new in ((b'"b":"T"', b'"b":"U","b":"T"'), (b'"b":"T"', b'"b":"T","b":"U"')):
        spoilt = frame.replace(old, new)
        total, mark = (int.from_bytes(frame[at : at + 4], "big") + len(new) - len(old) for at in (0, 4))
        pair.receive(1, total.to_bytes(4, "big") + mark.to_bytes(4, "big") + spoilt[8:])
        pair.end_round(new)
    await pair.stop()


async def test_an_address_of_a_white_list_needs_no_signature(pair: SideBySide) -> None:
    listed = pair.connect("10.1.2.3")
    for opaque in range(3):
        pair.receive(listed, signed(opaque, READER).encode())
        pair.receive(listed, signed(10 + opaque, Credentials("reader-account", "wrong")).encode())
        pair.receive(pair.connect(), signed(20 + opaque, Credentials("reader-account", "wrong")).encode())
        pair.end_round()
    await pair.stop()


async def test_a_change_of_accounts_counts_for_the_next_send(pair: SideBySide, tmp_path: Path) -> None:
    pair.receive(1, signed(1, SHOP).encode() + signed(2, SHOP).encode())
    pair.end_round()
    (tmp_path / "conf" / "plain_acl.yml").write_text(ACCOUNTS.replace("[T=PUB, U=SUB]", "[T=DENY, U=PUB]") + "\n")
    for side in pair.sides:
        await side.clock.run_for(6)
    pair.receive(1, signed(3, SHOP).encode() + signed(4, SHOP, topic="U").encode() + signed(5, SHOP).encode())
    pair.end_round()
    assert b"hello" in (await pair.python.stop())["commitlog/00000000000000000000"]
    await pair.compiled.stop()
