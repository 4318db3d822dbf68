"""The end of a certificate, read from its bytes, and the warning before it."""

from __future__ import annotations

import contextlib
import datetime
import logging
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting.tls.expiry import WARNING_DAYS, days_left, ends_at, first_ends_at
from cometmq.remoting.tls.options import TlsOptions
from cometmq.remoting.tls.server import ServerTls
from cometmq.testing import VirtualClock

DAY_S = 86_400


def certificate(directory: Path, ends: datetime.datetime) -> Path:
    issued = trustme.CA().issue_cert("127.0.0.1", not_before=ends - datetime.timedelta(days=90), not_after=ends)
    path = directory / "server.pem"
    path.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    return path


@pytest.mark.parametrize("year", [2030, 2049, 2050, 2300], ids=str)
def test_the_end_is_the_one_that_is_written_in_it(tmp_path: Path, year: int) -> None:
    ends = datetime.datetime(year, 2, 28, 23, 59, 58, tzinfo=datetime.UTC)
    text = certificate(tmp_path, ends).read_text()
    assert first_ends_at(text) == ends
    read = x509.load_pem_x509_certificate(text[text.index("-----BEGIN CERTIFICATE") :].encode())
    assert read.not_valid_after_utc == ends


DER = ssl.PEM_cert_to_DER_cert(trustme.CA().cert_pem.bytes().decode())


@given(st.data())
def test_bytes_that_are_spoilt_are_an_error_or_another_time_and_nothing_else(data: st.DataObject) -> None:
    spoilt = bytearray(DER)
    for _ in range(data.draw(st.integers(1, 3))):
        spoilt[data.draw(st.integers(0, 120))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        ends_at(bytes(spoilt[: data.draw(st.integers(0, 400))]))


def test_a_server_warns_once_a_day_before_its_certificate_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    ends = datetime.datetime.fromtimestamp(clock.now_ms() / 1000 + (WARNING_DAYS + 2) * DAY_S, datetime.UTC)
    path = str(certificate(tmp_path, ends))
    with caplog.at_level(logging.WARNING):
        tls = ServerTls(TlsOptions(tls_server_cert_path=path), clock=clock)
        assert caplog.messages == []
        for expected in (f"{path} expires in 29 days: replace", f"{path} expires in 28 days: replace"):
            clock.advance((3 if not caplog.messages else 1) * DAY_S)
            for _ in range(3):
                tls.context()
            [message] = caplog.messages[-1:]
            assert expected in message
        assert len(caplog.messages) == 2
        clock.advance(40 * DAY_S)
        tls.context()
        assert "has expired" in caplog.messages[-1]


def test_days_are_whole_and_negative_afterwards() -> None:
    ends = datetime.datetime(2030, 1, 2, tzinfo=datetime.UTC)
    assert [days_left(ends, ends.timestamp() - hours * 3_600) for hours in (49, 23, -1)] == [2, 0, -1]
