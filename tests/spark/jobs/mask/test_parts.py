"""Masking one message, the rules, the keys of subjects: properties that hold for any JSON; no Spark."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="PyArrow is not installed (pip install cometmq[spark])")
pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner
from tests.spark.lake_files import QUEUES, cover, messages, written_rows

from cometmq.archive.changes import Batch
from cometmq.cli.jobs.pipeline import command
from cometmq.message.properties import decode_properties
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.errors import MaskError, OptionError
from cometmq.spark.jobs.mask.job import MaskedSample, MaskReport
from cometmq.spark.jobs.mask.keys import (
    DataKey,
    KeyStore,
    Revealer,
    SecretPlace,
    digest,
    master_key_place,
    opened,
    sealed,
)
from cometmq.spark.jobs.mask.task import (
    APART,
    MASKED_COLUMNS,
    NOTHING,
    Masker,
    MaskTask,
    Plain,
    RefusedError,
    mask_batches,
)
from cometmq.spark.jobs.mask_rules import MaskRules, checked, parse_path, rules_from_options, rules_from_toml
from cometmq.spark.records.columns import arrow_schema
from cometmq.storage import open_storage

SECRET = b"a secret of hashes that nobody knows"
MARK = "⟦secret⟧"
"""Part of every value that is to be masked, and of nothing else."""

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=MARK), max_size=8)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | NAMES
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2), max_leaves=6
)
NO_KEYS: dict[bytes, bytes] = {}
SECRETS = st.builds("{}⟦secret⟧{}".format, NAMES, NAMES)


@pytest.fixture
def master(tmp_path: Path) -> SecretPlace:
    path = tmp_path / "master.key"
    path.write_bytes(base64.b64encode(os.urandom(32)))
    return master_key_place(path)


@pytest.fixture
def keys(tmp_path: Path, master: SecretPlace) -> Iterator[KeyStore]:
    store = KeyStore(tmp_path / "keys", master, make=True)
    yield store
    store.close()


def no_keys(subjects: Iterable[str]) -> dict[str, DataKey | None]:
    raise AssertionError("nothing is encrypted here")


def masker(rules: MaskRules, keys: KeyStore | None = None) -> Masker:
    return Masker(rules, no_keys if keys is None else keys.keys_for, SECRET)


def masked(rules: MaskRules, document: Any, properties: str = "", keys: KeyStore | None = None) -> tuple[Any, str]:
    """A message after masking: its document, and its properties as text."""
    [found] = masker(rules, keys).masked([Plain(json.dumps(document).encode(), properties)])
    assert isinstance(found, Plain), found
    return json.loads(found.body), found.properties_text


# What must never get through ------------------------------------------------------------------------


class Message:
    """A document with secrets at places that rules name, and public values at all others."""

    def __init__(self, public: dict[str, Any], secrets: list[str], subject: str | int) -> None:
        rest = {f"_{name}": value for name, value in public.items()}
        self.secrets = secrets
        self.document = rest | {
            "userId": subject,
            "user": {"phone": secrets[0], "also": public},
            "items": [{"email": secret, "n": number} for number, secret in enumerate(secrets)] + [public],
            'odd "name"': {"whole": [*secrets, {"deep": secrets[0]}]},
        }
        self.properties = f"KEYS\x01{' '.join(f'{MARK}{n}' for n in range(2))}\x02own\x01{MARK}\x02public\x01stays\x02"


MESSAGES = st.builds(
    Message,
    st.dictionaries(NAMES, JSON, max_size=2),
    st.lists(SECRETS, min_size=1, max_size=3),
    st.integers(0, 1 << 70) | NAMES.filter(bool),
)
FIELDS = ("$.user.phone", "$.items[*].email", '$["odd \\"name\\""].whole', "keys", "property:own")


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(MESSAGES, st.lists(st.sampled_from(["drop", "mask", "hash", "encrypt"]), min_size=5, max_size=5))
def test_no_masked_value_is_anywhere_and_everything_else_is_as_it_was(message: Message, actions: list[str]) -> None:
    rules = rules_from_options(map("{}={}".format, FIELDS, actions), subject="$.userId")
    table: dict[str, DataKey] = {}

    def keys_for(subjects: Iterable[str]) -> dict[str, DataKey]:
        return {subject: table.setdefault(subject, DataKey(os.urandom(16), os.urandom(32))) for subject in subjects}

    body = json.dumps(message.document).encode()
    [found] = Masker(rules, keys_for, SECRET).masked([Plain(body, message.properties)])
    assert isinstance(found, Plain)
    for text in (found.body.decode(), found.properties_text):
        assert MARK not in text
        assert json.dumps(MARK)[1:-1] not in text
        assert base64.b64encode(MARK.encode()).decode()[:8] not in text
    after = json.loads(found.body)
    for document in (after, before := json.loads(body)):  # what is left when the fields are taken away
        document["user"].pop("phone", None)
        document['odd "name"'].pop("whole", None)
        for item in document["items"]:
            if "n" in item:
                item.pop("email", None)
    assert after == before
    assert decode_properties(found.properties_text)["public"] == "stays"

    # Who holds the keys gets back what was encrypted.
    whole = json.loads(Revealer({key.key_id: key.key for key in table.values()}.get).body(found.body))
    if actions[0] == "encrypt":
        assert whole["user"]["phone"] == message.secrets[0]
    if actions[2] == "encrypt":
        assert whole['odd "name"']["whole"] == message.document['odd "name"']["whole"]


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_a_body_that_is_no_json_object_never_passes_unseen(body: bytes) -> None:
    """Whatever the bytes are: the result is JSON without the field, or a reason."""
    [found] = masker(rules_from_options(["$.phone=drop"])).masked([Plain(body, "")])
    if isinstance(found, Plain):
        document = json.loads(found.body)
        assert not isinstance(document, dict) or "phone" not in document
        assert document == json.loads(body) or isinstance(document, dict)
    else:
        assert isinstance(found, RefusedError)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"no json", "not JSON"),
        (b'{"phone": NaN}', "not JSON"),
        (b'\xff\xfe{"phone":1}', "not JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "JSON|deep"),
        (b'{"n": 0.12345678901234567890123}', "too many digits"),
        (b'{"n": 1e-99999999999999999999}', "too many digits"),
        (b'{"card": "1234"}', r"missing subject \$.userId"),
        (b'{"card": "1234", "userId": {"a": 1}}', r"missing subject \$.userId"),
    ],
    ids=["text", "NaN", "UTF-16", "deep", "digits", "exponent", "no subject", "odd subject"],
)
def test_what_cannot_be_masked_for_certain_is_refused(body: bytes, reason: str, keys: KeyStore) -> None:
    rules = rules_from_options(["$.phone=hash", "$.card=encrypt"], subject="$.userId")
    [found] = masker(rules, keys).masked([Plain(body, "")])
    assert isinstance(found, RefusedError)
    assert re.search(reason, str(found))


def test_of_two_members_of_one_name_none_gets_through() -> None:
    [found] = masker(rules_from_options(["$.phone=drop"])).masked([Plain(b'{"phone": "0123", "phone": null}', "")])
    assert isinstance(found, Plain)
    assert b"0123" not in found.body


# Actions --------------------------------------------------------------------------------------------


@given(NAMES, st.integers(0, 4), st.integers(0, 4))
def test_stars_keep_ends_of_longer_text_only(text: str, first: int, last: int) -> None:
    document, _ = masked(rules_from_options([f"$.phone=mask:{first}:{last}"]), {"phone": text})
    found = document["phone"]
    if len(text) <= first + last:
        assert set(found) == {"*"}
    else:
        assert (found[:first], found[len(found) - last :]) == (text[:first], text[len(text) - last :])
        assert found[first : len(found) - last] == "*" * (len(text) - first - last)


def test_equal_values_have_equal_hashes_wherever_they_stand() -> None:
    rules = rules_from_options(["$.userId=hash", "$.list[*]=hash", "keys=hash", "property:user=hash"])
    document, text = masked(rules, {"userId": 17, "list": ["17", 18]}, "KEYS\x0117 18\x02user\x0117\x02")
    properties = decode_properties(text)
    assert document["userId"] == document["list"][0] == properties["user"] == digest(SECRET, "17")
    assert properties["KEYS"] == f"{digest(SECRET, '17')} {digest(SECRET, '18')}"
    assert document["list"][1] == digest(SECRET, "18") != document["userId"]
    assert digest(b"another secret", "17") != document["userId"]


def test_dropped_elements_of_arrays_leave_the_others_where_they_are() -> None:
    rules = rules_from_options(["$.a[1]=drop", "$.a[*]=drop", "$.b[0]=drop", "$.c.d=drop"])
    document, _ = masked(rules, {"a": [1, 2, 3], "b": [1, 2], "c": {"d": 1, "e": 2}})
    assert document == {"a": [], "b": [2], "c": {"e": 2}}
    whole, _ = masked(rules_from_options(["body=drop"]), {"a": 1})
    assert whole is None


@pytest.mark.parametrize("outer", ["mask:0:4", "encrypt"])
@pytest.mark.parametrize("inner", ["drop", "mask", "hash"])
@pytest.mark.parametrize("first", [True, False])
def test_what_is_taken_out_of_a_field_is_not_in_what_becomes_of_the_field(outer: str, inner: str, first: bool) -> None:
    table: dict[bytes, bytes] = {}

    def keys_for(subjects: Iterable[str]) -> dict[str, DataKey]:
        made = {subject: DataKey(os.urandom(16), os.urandom(32)) for subject in subjects}
        table.update(made.values())
        return made

    texts = [f"$.cards[*].number={inner}", f"$.cards={outer}"]
    rules = rules_from_options(texts if first else texts[::-1], subject="$.id")
    body = b'{"id":"a","cards":[{"number":"4111111111111234","of":"me"},{"number":"5111111111111234"}]}'
    [found] = Masker(rules, keys_for, SECRET).masked([Plain(body, "")])
    assert isinstance(found, Plain)
    shown = Revealer(table.get).body(found.body)
    assert "1234" not in shown.replace(digest(SECRET, "4111111111111234"), "").replace(
        digest(SECRET, "5111111111111234"), ""
    )
    assert outer != "encrypt" or '"of": "me"' in shown


def test_what_two_rules_encrypt_one_within_the_other_is_revealed() -> None:
    rules = rules_from_options(["$.user.card=encrypt", "$.user=encrypt"], subject="$.id")
    key = DataKey(os.urandom(16), os.urandom(32))
    [found] = Masker(rules, lambda subjects: dict.fromkeys(subjects, key), SECRET).masked(
        [Plain(b'{"id":"a","user":{"card":"4111"}}', "")]
    )
    assert isinstance(found, Plain)
    assert json.loads(Revealer({key.key_id: key.key}.get).body(found.body)) == {"id": "a", "user": {"card": "4111"}}


def test_whole_bodies_that_are_no_json_can_be_masked(keys: KeyStore) -> None:
    [hashed] = masker(rules_from_options(["body=hash"])).masked([Plain(b"plain text", "")])
    assert isinstance(hashed, Plain)
    assert json.loads(hashed.body) == digest(SECRET, "plain text")
    [left] = masker(rules_from_options(["$.a=hash"], not_json="drop")).masked([Plain(b"plain text", "KEYS\x01k\x02")])
    assert left == Plain(NOTHING, "KEYS\x01k\x02")


def test_a_task_writes_what_no_calendar_has_and_leaves_out_what_cannot_be_unpacked(tmp_path: Path) -> None:
    """Three messages: born in the year 200,000, with an unreadable body, and of another queue."""
    columns: dict[str, list[Any]] = {
        "topic": ["T"] * 3,
        "brokerName": ["broker-a"] * 3,
        "queueId": [0, 0, 1],
        "queueOffset": [7, 8, 7],
        "physicalOffset": [0, 100, 200],
        "body": [b'{"phone": "0123", "n": 1}', None, b'{"phone": "4567"}'],
        "propertiesText": ["TAGS\x01a\x02", "", None],
        "flag": [3, 0, 0],
        "sysFlag": [1, 1, 0],
        "bornTimestamp": [6_248_000_000_000_000_000, 0, 0],
        "bornHost": ["192.0.2.1:1", "[2001:db8::1]:2", "[2001:db8::1]:2"],
        "storeTimestamp": [1_700_000_000_123_000] * 3,
        "storeHost": ["192.0.2.2:10911"] * 3,
        "reconsumeTimes": [0, 1, 2],
        "preparedTransactionOffset": [0, 0, 0],
    }
    assert tuple(columns) == MASKED_COLUMNS
    batch = pa.RecordBatch.from_pydict(columns, schema=arrow_schema(MASKED_COLUMNS))
    nowhere = SecretPlace("nothing", "NO_SUCH_VARIABLE")
    task = MaskTask(open_storage(tmp_path), rules_from_options(["$.phone=drop"]), None, nowhere, nowhere)
    results = mask_batches(task, [batch])
    files = [result.file for result in results if result.file is not None]
    assert [(file.queue_id, file.first, file.end, file.rows) for file in files] == [(0, 7, 8, 1), (1, 7, 8, 1)]
    assert (results[-1].messages, results[-1].values) == (2, {"$.phone": 2})
    assert results[-1].apart == {"its body cannot be decompressed": 1}
    [first, second] = [pq.read_table(tmp_path / file.path) for file in files]
    assert first.column("body").to_pylist() == [b'{"n":1}']
    assert first.column("bornTimestamp").cast(pa.int64()).to_pylist() == columns["bornTimestamp"][:1]
    assert (first.column("sysFlag").to_pylist(), first.column("flag").to_pylist()) == ([0], [3])
    assert second.column("bornHost").to_pylist() == ["[2001:db8::1]:2"]
    [line] = (tmp_path / APART / "T-broker-a-0-00000000000000000008.jsonl").read_text().splitlines()
    assert json.loads(line)["queueOffset"] == 8


# Keys -----------------------------------------------------------------------------------------------


def test_dropping_a_key_erases_for_that_subject_only(keys: KeyStore) -> None:
    rules = rules_from_options(["$.users[*].phone=encrypt:$.users[*].id"])
    before = {"users": [{"id": "ann", "phone": "0123"}, {"id": 7, "phone": ["04", {"x": 5}]}]}
    document, _ = masked(rules, before, keys=keys)
    assert Revealer(keys.key_of).value(document) == before
    assert keys.forget("ann")
    assert not keys.forget("ann")
    revealer = Revealer(keys.key_of)
    after = revealer.value(document)
    assert after["users"][0]["phone"].startswith("enc:1:")
    assert after["users"][1] == before["users"][1]
    assert (revealer.opened, revealer.erased) == (1, 1)
    # What is copied later has no place for it any more, also where there was no key yet.
    assert not keys.forget("bob")
    again, _ = masked(rules, {"users": [{"id": "ann", "phone": "1"}, {"id": "bob", "phone": "2"}]}, keys=keys)
    assert again == {"users": [{"id": "ann"}, {"id": "bob"}]}


def test_the_file_of_keys_tells_nothing_without_the_master_key(tmp_path: Path, keys: KeyStore) -> None:
    made = keys.keys_for(["ann@example.org"])["ann@example.org"]
    assert made is not None
    content = (tmp_path / "keys").read_bytes()
    assert b"ann@example" not in content
    assert made.key not in content
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o600
    keys.forget("ann@example.org")
    assert keys.key_of(made.key_id) is None
    other = tmp_path / "other.key"
    other.write_bytes(base64.b64encode(os.urandom(32)))
    with pytest.raises(MaskError, match="another master key"):
        KeyStore(tmp_path / "keys", master_key_place(other))
    with pytest.raises(MaskError, match=r"key store .* does not exist"):
        KeyStore(tmp_path / "elsewhere", master_key_place(other))


def keys_made(path: str, master: SecretPlace, subjects: list[str]) -> list[bytes]:
    store = KeyStore(path, master, make=True)
    return [key.key for key in store.keys_for(subjects).values() if key is not None]


def test_processes_that_make_keys_at_once_agree_on_them(tmp_path: Path, master: SecretPlace) -> None:
    subjects = [f"subject {number}" for number in range(50)]
    with get_context("spawn").Pool(3) as pool:
        found = pool.starmap(keys_made, [(str(tmp_path / "shared"), master, subjects)] * 3)
    assert len({tuple(one) for one in found}) == 1
    assert len(set(found[0])) == 50


@pytest.mark.parametrize("change", [lambda text: text[:-2] + ("A" if text[-2] != "A" else "B") + text[-1]])
def test_a_changed_value_is_noticed(change: Callable[[str], str]) -> None:
    key = DataKey(os.urandom(16), os.urandom(32))
    text = sealed({"a": [1, "ä"]}, key)
    assert opened(text, {key.key_id: key.key}.get) == {"a": [1, "ä"]}
    with pytest.raises(ValueError, match="was changed"):
        opened(change(text), {key.key_id: key.key}.get)


@pytest.mark.parametrize("length", range(57, 70))
def test_what_only_looks_encrypted_is_left_as_it_is(length: int) -> None:
    """Anybody may write such a text into a field that no rule names."""
    body = json.dumps({"note": "enc:1:" + "A" * length})
    assert Revealer(NO_KEYS.get).body(body.encode()) == body


def test_a_message_with_a_value_that_was_changed_goes_apart_and_the_rest_is_revealed(
    tmp_path: Path, keys: KeyStore
) -> None:
    key = keys.keys_for(["ann"])["ann"]
    assert key is not None
    token = sealed("4111", key)
    changed = token[:-8] + ("A" if token[-8] != "A" else "B") + token[-7:]
    bodies = [f'{{"card": "{text}"}}' for text in (token, changed, token)]
    log = ArchiveLog(tmp_path / "copy")
    rows = messages(QUEUES[0], range(3))
    at = rows.schema.get_field_index("body")
    rows = rows.set_column(at, rows.schema.field(at), pa.array([body.encode() for body in bodies], pa.binary()))
    files = written_rows(tmp_path / "copy", QUEUES[0], [rows])
    log.append(Batch("q", 0, [cover(QUEUES[0], 0, 3)], files))

    words = ["mask", "reveal", "--archive", str(Path(log.url)), "--keys", str(tmp_path / "keys")]
    done = CliRunner().invoke(
        command, [*words, "--master-key-file", str(tmp_path / "master.key")], standalone_mode=False
    )
    assert (done.exception, done.return_value) == (None, 3)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["queueOffset"], json.loads(line["body"])["card"]) for line in lines] == [(0, "4111"), (2, "4111")]
    [apart, sums] = done.stderr.splitlines()
    assert json.loads(apart) == {
        "topic": "orders",
        "brokerName": "broker-a",
        "queueId": 0,
        "queueOffset": 1,
        "reason": "an encrypted value was changed",
    }
    assert sums == "2 values opened, 0 erased, 1 message left out"


def test_a_body_that_is_nested_deeply_is_revealed() -> None:
    rules = rules_from_options(["$.a=encrypt"], subject="$.id")
    key = DataKey(os.urandom(16), os.urandom(32))
    body = b'{"id":"x","deep":' + b"[" * 600 + b"]" * 600 + b',"a":1}'
    [found] = Masker(rules, lambda subjects: dict.fromkeys(subjects, key), SECRET).masked([Plain(body, "")])
    assert isinstance(found, Plain)
    assert Revealer({key.key_id: key.key}.get).body(found.body).replace(" ", "") == body.decode()


@pytest.mark.parametrize(
    ("text", "message"), [("k3y!", "shorter than 16"), ("not base64 at all, is it?", "32 bytes in base64")]
)
def test_a_bad_master_key_is_refused_and_not_told(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    with pytest.raises(OptionError, match=message) as refused:
        KeyStore(tmp_path / "keys", master_key_place(path), make=True)
    assert text not in str(refused.value)


# Rules ----------------------------------------------------------------------------------------------


def test_rules_from_a_file_and_from_options_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(
        """
        subject = "$.userId"
        not_json = "drop"
        rule = [
            {field = "$.user.phone", action = "mask", keep_last = 2},
            {field = "$.items[*].email", action = "encrypt"},
            {field = "keys", action = "hash"},
        ]
        """
    )
    options = ["$.user.phone=mask:0:2", "$.items[*].email=encrypt", "keys=hash"]
    assert rules_from_toml(path) == rules_from_options(options, subject="$.userId", not_json="drop")
    path.write_text("rule = [{field = 'body', action = 'mask', keep = 2}]")
    with pytest.raises(OptionError, match="keep"):
        rules_from_toml(path)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("$.a", "FIELD=ACTION"),
        ("$.a=hush", "did you mean hash"),
        ("$.=hash", "not a path into JSON"),
        ("$.a[x]=hash", "not a path into JSON"),
        ("$=hash", "not a path into JSON"),
        ("phone=hash", "is not a field"),
        ("property:=hash", "is not a field"),
        ("property:KEYS=hash", "write keys instead"),
        ("$.a=mask:x", "must be whole numbers"),
        ("$.a=mask:65", "keep 0 to 64"),
        ("$.a=encrypt", "whose key"),
        ("$.a=encrypt:$.b[*].id", "other arrays"),
        ("$.a[*].b=encrypt:$.c[*].id", "other arrays"),
        ("keys=encrypt:$.a[*].id", "other arrays"),
    ],
)
def test_wrong_rules_say_what_is_wrong(rule: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        rules_from_options([rule])


def test_rules_that_contradict_each_other_are_refused() -> None:
    for rules, message in ((["$.a=hash", "$.a=drop"], "two rules"), (["body=hash", "$.a=drop"], "cannot be combined")):
        with pytest.raises(OptionError, match=message):
            rules_from_options(rules)
    with pytest.raises(OptionError, match="no rules are given"):
        checked([])


def test_paths_lead_to_places() -> None:
    document = {"a": [{"b": 1}, {"b": 2}, {"c": 3}, 4], "x.y": {"z": 5}}
    assert [place.value for place in parse_path("$.a[*].b").places(document)] == [1, 2]
    assert [place.indices for place in parse_path("$.a[*].b").places(document)] == [(0,), (1,)]
    assert [place.value for place in parse_path('$["x.y"].z').places(document)] == [5]
    assert [place.value for place in parse_path("$.a[3]").places(document)] == [4]
    assert [place.value for place in parse_path("$[*]").places([1, 2])] == [1, 2]
    assert not list(parse_path("$.a.b").places(document))
    assert parse_path("$.a[*].b").at(document, [1]) == 2
    assert parse_path("$.a[*].b").at(document, [2]) is None
    assert parse_path("$.a[3].b").at(document, []) is None


def test_samples_are_for_the_terminal_only() -> None:
    """``-o json`` goes into logs and files, and a sample is not masked."""
    sample = MaskedSample("T", "b", 0, 7, f'{{"phone": "{MARK}"}}', '{"phone": "*"}', {"KEYS": MARK}, {})
    report = MaskReport(
        source="an archive",
        to="a directory",
        dry_run=True,
        finished=True,
        messages=1,
        total=0,
        values={"$.phone": 1},
        apart={},
        steps=(),
        warnings=(),
        replayed=None,
        seconds=1.0,
        samples=(sample,),
    )
    assert MARK in report.render_samples()
    assert MARK not in report.render()
    assert MARK not in json.dumps(report.to_dict(), ensure_ascii=False)
