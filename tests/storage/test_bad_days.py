"""Bad days of an S3 server: each ends well, or with a sentence and the next step."""

from __future__ import annotations

import datetime
import hashlib
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.storage.servers.faults import Faults, faulty
from tests.storage.servers.gcs import gcs
from tests.storage.servers.seaweed import ACCESS_KEY, SECRET_KEY, S3Server

import cometmq.storage.connection
from cometmq.remoting.tls.own_authority import Authority
from cometmq.storage import (
    Storage,
    StorageError,
    StorageOptions,
    StorageUnavailableError,
    StoredObject,
    UnsafeStorageError,
    check_conditional_writes,
    open_storage,
)
from cometmq.storage.local import LocalStorage
from cometmq.storage.objects import PART_BYTES
from cometmq.testing.ports import free_port


@pytest.fixture
def proxied(s3: S3Server) -> Iterator[tuple[Storage, Faults]]:
    """A storage behind a proxy that fails."""
    with faulty(s3.endpoint) as (endpoint, faults):
        yield open_storage("s3://lake/days", replace(s3.options, endpoint=endpoint)), faults


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries end after a second instead of minutes."""
    retries = {"max_retries": 1, "retry_timeout": datetime.timedelta(seconds=1)}
    monkeypatch.setattr(cometmq.storage.connection, "_RETRIES", retries)


@pytest.mark.parametrize("status", ["503", "429", "500"])
def test_a_server_that_asks_for_fewer_requests_is_asked_again(proxied: tuple[Storage, Faults], status: str) -> None:
    storage, faults = proxied
    faults.fail(status, 3)
    storage.put(f"slow-{status}", b"x")
    assert storage.read(f"slow-{status}") == b"x"


def test_an_object_whose_answer_was_lost_counts_as_created(proxied: tuple[Storage, Faults]) -> None:
    storage, faults = proxied
    faults.fail("lost", 1)
    storage.create("lost", b"token 1")
    assert len([line for line in faults.seen if line.startswith("PUT")]) == 2


def test_a_connection_cut_within_a_part_loses_and_doubles_nothing(proxied: tuple[Storage, Faults]) -> None:
    storage, faults = proxied
    content = b"0123456789abcdef" * (1 << 20)  # two parts
    faults.fail("cut", 1, lambda method, path: "partNumber" in path)
    with storage.open_writer("cut") as file:
        file.write(content)
    assert storage.read("cut") == content


def test_an_error_in_an_answer_200_is_noticed(proxied: tuple[Storage, Faults]) -> None:
    storage, faults = proxied
    content = b"0123456789abcdef" * (1 << 20)
    faults.fail("error-in-200", 1, lambda method, path: method == "POST" and "uploadId" in path)
    with storage.open_writer("complete") as file:
        file.write(content)
    assert storage.read("complete") == content


@pytest.mark.usefixtures("impatient")
def test_a_server_that_stays_away_is_named_with_the_next_step(proxied: tuple[Storage, Faults]) -> None:
    storage, faults = proxied
    faults.fail("503", 1000)
    with pytest.raises(
        StorageUnavailableError, match=r"asks for fewer requests: SlowDown.*run the command again later"
    ):
        storage.put("x", b"x")
    gone = open_storage("s3://lake", StorageOptions(endpoint=f"http://127.0.0.1:{free_port()}", access_key_id="a",
                                                    secret_access_key="b"))  # fmt: skip
    with pytest.raises(StorageUnavailableError, match=r"does not answer.*check the endpoint"):
        gone.read("x")


def test_a_storage_that_ignores_conditions_is_refused(tmp_path: Path) -> None:
    with gcs(tmp_path, heeds_conditions=False) as options:
        storage = open_storage("gs://lake", options)
        with pytest.raises(UnsafeStorageError, match=r"replaces objects that may only be created.*conditional writes"):
            check_conditional_writes(storage)
        assert list(storage.list_objects()) == []


class _LateLists(LocalStorage):
    """A storage whose lists have only the objects of an earlier probe."""

    def list_objects(self, directory: str = "", after: str = "") -> Iterator[StoredObject]:
        return (found for found in super().list_objects(directory, after) if found.key == "_probe/earlier")


def test_a_storage_whose_lists_miss_new_objects_is_refused(tmp_path: Path) -> None:
    storage = _LateLists(tmp_path)
    storage.put("_probe/earlier", b"x")
    with pytest.raises(UnsafeStorageError, match="does not list new objects"):
        check_conditional_writes(storage)


@pytest.mark.usefixtures("impatient")
def test_a_storage_without_conditions_names_the_option(proxied: tuple[Storage, Faults]) -> None:
    storage, faults = proxied
    body = b"<Error><Code>NotImplemented</Code><Message>A header is not implemented.</Message></Error>"
    faults.fail("501", 1000, lambda method, path: method == "PUT", body)
    with pytest.raises(StorageError, match=r"does not support conditional writes.*forbidOverwriteHeader"):
        check_conditional_writes(storage)


def test_a_header_replaces_the_condition_where_a_storage_has_one(s3: S3Server) -> None:
    with faulty(s3.endpoint) as (endpoint, faults):
        options = replace(s3.options, endpoint=endpoint, forbid_overwrite_header="x-oss-forbid-overwrite")
        storage = open_storage("s3://lake/oss", options)
        storage.create("once", b"x")
        assert faults.headers["x-oss-forbid-overwrite"] == "true"
        assert "if-none-match" not in faults.headers
        body = b"<Error><Code>FileAlreadyExists</Code><Message>The object exists.</Message></Error>"
        faults.fail("409", 1000, lambda method, path: method == "PUT", body)
        storage.create("once", b"x")  # its own content


@pytest.mark.parametrize(
    ("status", "code", "sentence"),
    [
        ("404", "NoSuchBucket", "the bucket does not exist.*create it"),
        ("403", "AccessDenied", "denies access.*grant reading"),
        ("403", "InvalidAccessKeyId", "access key is unknown"),
        ("403", "SignatureDoesNotMatch", "secret key does not match"),
        ("403", "RequestTimeTooSkewed", "clock of this machine differs"),
        ("403", "ExpiredToken", "token has expired"),
        ("301", "PermanentRedirect", "in another region.*set the region"),
        ("400", "AuthorizationHeaderMalformed", "in another region"),
        ("507", "XMinioStorageFull", "storage is full"),
        ("403", "QuotaExceeded", "storage is full"),
    ],
)
@pytest.mark.usefixtures("impatient")
def test_each_refusal_says_what_to_do(proxied: tuple[Storage, Faults], status: str, code: str, sentence: str) -> None:
    storage, faults = proxied
    faults.fail(status, 1000, code=f"<Error><Code>{code}</Code><Message>A sentence.</Message></Error>".encode())
    for request in (
        lambda: storage.put("x", b"x"),
        lambda: storage.read("x"),
        lambda: list(storage.list_objects()),
        lambda: storage.delete(["x"]),
    ):
        with pytest.raises(StorageError, match=sentence):
            request()


def test_a_missing_bucket_and_a_wrong_key_of_a_real_server(s3: S3Server) -> None:
    with pytest.raises(StorageError, match="the bucket does not exist"):
        open_storage("s3://no-such-bucket/x", s3.options).put("a", b"x")
    with pytest.raises(StorageError, match="access key is unknown"):
        open_storage("s3://lake", replace(s3.options, access_key_id="nobody")).read("a")
    with pytest.raises(StorageError, match="secret key does not match"):
        open_storage("s3://lake", replace(s3.options, secret_access_key="TOPSECRET")).put("a", b"x")


def test_an_error_contains_no_secret(s3: S3Server) -> None:
    options = replace(s3.options, secret_access_key="TOPSECRET", session_token="TOPTOKEN")
    with pytest.raises(StorageError) as raised:
        open_storage("s3://lake", options).put("a", b"x")
    shown = f"{raised.value!r} {raised.value} {raised.value.__cause__}"
    assert "TOPSECRET" not in shown
    assert "TOPTOKEN" not in shown


@pytest.mark.parametrize(
    ("tls", "sign_content", "signed"),
    [(False, "", True), (True, "", False), (True, "always", True), (False, "never", False)],
)
def test_content_is_signed_where_tls_does_not_protect_it(
    s3: S3Server, tmp_path: Path, tls: bool, sign_content: str, signed: bool
) -> None:
    context, authority = _tls(tmp_path)
    with faulty(s3.endpoint, context if tls else None) as (endpoint, faults):
        options = replace(s3.options, endpoint=endpoint, ca_file=str(authority), sign_content=sign_content)
        storage = open_storage("s3://lake/signed", options)
        storage.put("put", b"x")
        digest = faults.headers["x-amz-content-sha256"]
        assert digest == (hashlib.sha256(b"x").hexdigest() if signed else "UNSIGNED-PAYLOAD")
        with storage.open_writer("parts") as file:
            file.write(bytes(PART_BYTES + 1))
        assert storage.stat("parts") is not None


def test_a_self_signed_certificate_is_named_and_can_be_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, trusted = _tls(tmp_path)
    with _tls_server(context) as port:
        options = StorageOptions(
            endpoint=f"https://localhost:{port}", access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY
        )
        with pytest.raises(StorageError, match=r"certificate of the server is not trusted.*AWS_CA_BUNDLE"):
            _without_retries(monkeypatch, options).read("a")
        assert _without_retries(monkeypatch, replace(options, ca_file=str(trusted))).read("a") == b"content"
        monkeypatch.setenv("AWS_CA_BUNDLE", str(trusted))
        assert _without_retries(monkeypatch, options).read("a") == b"content"


class _Content(BaseHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        for name, value in {
            "Content-Length": "7",
            "ETag": '"1"',
            "Last-Modified": "Wed, 18 Nov 2026 10:00:00 GMT",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"content")


def _tls(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """A context of a server at localhost, and the file of its authority."""
    authority = Authority.new("tests", 2)
    issued = authority.issue("localhost", ["localhost"], 2)
    key, certificate, trusted = directory / "key.pem", directory / "cert.pem", directory / "authority.pem"
    key.write_bytes(issued.key)
    certificate.write_bytes(issued.certificate)
    trusted.write_bytes(authority.issued.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, trusted


@contextmanager
def _tls_server(context: ssl.SSLContext) -> Iterator[int]:
    server = ThreadingHTTPServer(("localhost", 0), _Content)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _without_retries(monkeypatch: pytest.MonkeyPatch, options: StorageOptions) -> Storage:
    monkeypatch.setattr(cometmq.storage.connection, "_RETRIES", {"max_retries": 0})
    return open_storage("s3://lake", options)
