"""Reads a certificate's expiry time from its bytes (RFC 5280, 4.1; X.690), so that no other package is needed.

A certificate is a SEQUENCE. Its first, signed part has a version, a serial number, an algorithm, the issuer, and then
the validity period, which consists of two times.
"""

from __future__ import annotations

import datetime
import ssl
from typing import Final

WARNING_DAYS: Final = 30
"""Number of days before a certificate expires at which operators are warned."""

_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_FORMS: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""The ASN.1 tags of UTCTime and GeneralizedTime."""
SECONDS_OF_A_DAY: Final = 86_400
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def ends_at(certificate: bytes) -> datetime.datetime:
    """Return the time at which a certificate expires.

    :param certificate: the certificate in DER.
    :raises ValueError: the bytes are not a certificate.
    """
    signed = _content(_content(certificate, _SEQUENCE)[0], _SEQUENCE)[0]
    if signed[:1] == bytes([_VERSION]):
        signed = _content(signed, _VERSION)[1]
    for _ in range(3):  # skip the serial number, the algorithm and the issuer
        signed = _content(signed, signed[0] if signed else -1)[1]
    validity = _content(signed, _SEQUENCE)[0]
    validity = _content(validity, validity[0] if validity else -1)[1]
    form = _FORMS.get(validity[0] if validity else -1)
    if form is None:
        raise ValueError("the certificate has no validity period")
    text = _content(validity, validity[0])[0].decode("ascii")
    return datetime.datetime.strptime(text, form).replace(tzinfo=datetime.UTC)


def first_ends_at(pem: str) -> datetime.datetime | None:
    """Return the time at which the first certificate in a file expires, or ``None`` if the file contains none."""
    begin = pem.find(_BEGIN)
    end = pem.find(_END, begin)
    if begin < 0 or end < 0:
        return None
    try:
        return ends_at(ssl.PEM_cert_to_DER_cert(pem[begin : end + len(_END)]))
    except ValueError:
        return None


def days_left(ends: datetime.datetime, now_s: float) -> int:
    """Return the number of full days until ``ends``, which is negative if ``ends`` has passed."""
    return int((ends.timestamp() - now_s) // SECONDS_OF_A_DAY)


def _content(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """Return the content of the data's first element, and the bytes after that element."""
    if len(data) < 2 or data[0] != tag:
        raise ValueError("the certificate contains an unexpected ASN.1 element")
    length, at = data[1], 2
    if length & 0x80:
        digits = length & 0x7F
        if not 1 <= digits <= 4:
            raise ValueError("the certificate contains an ASN.1 element with an invalid length")
        length, at = int.from_bytes(data[2 : 2 + digits], "big"), 2 + digits
    if at + length > len(data):
        raise ValueError("the certificate contains a truncated ASN.1 element")
    return data[at : at + length], data[at + length :]
