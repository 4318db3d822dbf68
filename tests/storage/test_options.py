"""Options of storage, from names and from the configuration of Hadoop."""

from __future__ import annotations

import pytest

from cometmq.options.forms import OptionError
from cometmq.storage import Location, StorageOptions
from cometmq.storage.hadoop import options_from_hadoop


def test_options_are_parsed_by_their_names() -> None:
    options = StorageOptions.from_texts({"endpoint": "http://127.0.0.1:9000", "virtualHost": "true", "region": "x"})
    assert options == StorageOptions(endpoint="http://127.0.0.1:9000", virtual_host=True, region="x")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("endpont", "http://x", "unknown storage option endpont .did you mean endpoint"),
        ("endpoint", "127.0.0.1:9000", "option endpoint must be a URL such as https://"),
        ("anonymous", "perhaps", "option anonymous must be"),
    ],
)
def test_a_wrong_option_is_named(name: str, value: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        StorageOptions.from_texts({name: value})


def test_secrets_appear_in_no_repr() -> None:
    options = StorageOptions(secret_access_key="TOPSECRET", session_token="TOPSECRET2", account_access_key="TOPSECRET3")
    assert "TOPSECRET" not in repr(options)
    assert options.secrets == ["TOPSECRET", "TOPSECRET2", "TOPSECRET3"]


def test_set_options_win_over_others() -> None:
    mine, other = StorageOptions(endpoint="http://mine"), StorageOptions(endpoint="http://other", region="r")
    assert mine.over(other) == StorageOptions(endpoint="http://mine", region="r")


def test_the_configuration_of_hadoop_for_s3() -> None:
    conf = {
        "fs.s3a.access.key": "general",
        "fs.s3a.secret.key": "secret",
        "fs.s3a.bucket.lake.access.key": "of the bucket",
        "fs.s3a.endpoint": "minio:9000",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.endpoint.region": "auto",
        "fs.s3a.encryption.algorithm": "SSE-KMS",
        "fs.s3a.encryption.key": "key",
    }
    found = options_from_hadoop(Location.parse("s3a://lake/x"), conf.get)
    assert found == StorageOptions(
        endpoint="http://minio:9000",
        region="auto",
        access_key_id="of the bucket",
        secret_access_key="secret",
        encryption="aws:kms",
        kms_key="key",
    )
    assert options_from_hadoop(Location.parse("s3a://other/x"), conf.get).access_key_id == "general"


def test_the_configuration_of_hadoop_for_azure_and_google() -> None:
    account = "shop.dfs.core.windows.net"
    azure = Location.parse(f"abfss://lake@{account}/x")
    conf = {
        f"fs.azure.account.key.{account}": "key",
        "fs.azure.account.oauth2.client.id": "id",
        "fs.azure.account.oauth2.client.endpoint": "https://login.microsoftonline.com/tenant/oauth2/token",
    }
    assert options_from_hadoop(azure, conf.get) == StorageOptions(
        account_access_key="key", client_id="id", tenant_id="tenant"
    )
    google = {"fs.gs.auth.service.account.json.keyfile": "/key.json"}
    assert options_from_hadoop(Location.parse("gs://lake/x"), google.get).service_account_file == "/key.json"
    assert options_from_hadoop(Location.parse("/data"), lambda key: None) == StorageOptions()
