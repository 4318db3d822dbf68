from __future__ import annotations

import base64
import hashlib
import hmac
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting.command import RemotingCommand, decode_command
from cometmq.remoting.errors import denial_step
from cometmq.remoting.signing import Credentials, signed_text

names = st.text(st.characters(codec="ascii", categories=["L", "Nd"]), min_size=1, max_size=8)
values = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def test_the_signature_is_the_one_that_apache_makes() -> None:
    request = RemotingCommand(code=105, ext_fields={"topic": "TopicTest"})
    Credentials("RocketMQ", "12345678").sign(request)
    assert request.ext_fields == {
        "topic": "TopicTest",
        "AccessKey": "RocketMQ",
        "Signature": "0jiwhsaYp5ObE5GObbZH1I8/FT4=",
    }


@given(
    st.dictionaries(names, values, max_size=6),
    st.binary(max_size=40),
    st.none() | values.filter(bool),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100),
)
def test_a_signature_covers_every_field_and_the_body(
    fields: dict[str, str], body: bytes, token: str | None, secret_key: str
) -> None:
    request = RemotingCommand(code=10, ext_fields=dict(fields), body=body)
    Credentials("account", secret_key, token).sign(request)
    arrived = decode_command(request.encode())
    signature = arrived.ext_fields.pop("Signature")
    assert arrived.ext_fields.get("SecurityToken") == (token or fields.get("SecurityToken"))
    text = "".join(value for _, value in sorted(arrived.ext_fields.items())).encode() + arrived.body
    expected = hmac.new(secret_key.encode(), text, hashlib.sha1).digest()
    assert base64.b64decode(signature) == expected


def test_a_request_may_be_signed_again() -> None:
    request = RemotingCommand(code=105, ext_fields={"topic": "t"})
    credentials = Credentials("account", "secret-1")
    credentials.sign(request)
    once = dict(request.ext_fields)
    credentials.sign(request)
    assert request.ext_fields == once


def test_the_flag_of_queries_by_unique_key_is_not_signed_and_the_version_says_so() -> None:
    request = RemotingCommand(code=12, ext_fields={"topic": "t", "_UNIQUE_KEY_QUERY": "true"})
    Credentials("account", "secret-1").sign(request)
    assert signed_text(request.ext_fields) == b"accountt"
    assert request.ext_fields["_UNIQUE_KEY_QUERY"] == "true"
    assert request.version == 399  # V4_9_3: a broker of 5.x leaves it out as well


def test_credentials_never_show_their_secrets() -> None:
    credentials = Credentials("account", "very-secret", "token-secret")
    assert "secret" not in f"{credentials!r} {credentials}"
    assert pickle.loads(pickle.dumps(credentials)) == credentials
    for keys in (("", "s"), ("a", "")):
        with pytest.raises(ValueError, match="access key and a secret key"):
            Credentials(*keys)


@pytest.mark.parametrize(
    ("code", "remark", "step"),
    [
        (1, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured, …", "set an access key"),
        (1, "org.apache.rocketmq.acl.common.AclException: No acl config for x, …", "no account with this access key"),
        (1, "AclException: Check signature failed for accessKey=x", "does not belong to this access key"),
        (1, "AclException: Need admin permission for request code=17, but accessKey=x is not", "admin: true"),
        (1, "AclException: No default permission for topic:Orders", "topicPerms"),
        (1, "java.lang.NullPointerException", None),
        (1, None, None),
        (16, "the topic is not writable", None),
    ],
)
def test_the_no_of_an_acl_is_told_with_its_next_step(code: int, remark: str | None, step: str | None) -> None:
    found = denial_step(code, remark)
    assert found is None if step is None else step in (found or "")
