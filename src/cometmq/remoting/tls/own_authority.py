"""Certificates for trying out TLS: an authority and the certificates that it issues. Requires the extra ``server``.

Keys use the curve P-256, which every client accepts; a handshake costs a fifth of a handshake with RSA.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.errors import SERVER, require
from cometmq.message.hosts import parsed_ip
from cometmq.remoting.tls.contexts import TlsError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_SELF_SIGNED_DAYS: Final = 3_650
_SKEW: Final = datetime.timedelta(hours=1)
"""Certificates become valid this long before they are made, so that machines whose clocks are behind accept them."""


@dataclass(frozen=True)
class Issued:
    """A certificate and its key in PEM format. The key is in PKCS #8 form and has no password."""

    certificate: bytes
    key: bytes


class Authority:
    """A certificate authority with its own certificate and key."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def new(cls, name: str, days: int) -> Authority:
        """Create an authority that is valid for ``days`` days.

        :raises MissingPackageError: cryptography is not installed.
        """
        _require_cryptography()
        key = _new_key()
        return cls(_certificate(name, (), key, days), key)

    @classmethod
    def of(cls, issued: Issued) -> Authority:
        """Load an existing authority.

        :raises MissingPackageError: cryptography is not installed.
        :raises TlsError: the certificate or key does not belong to an authority.
        """
        _require_cryptography()
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            certificate = x509.load_pem_x509_certificate(issued.certificate)
            key = serialization.load_pem_private_key(issued.key, None)
        except (TypeError, ValueError) as error:
            raise TlsError("the authority's certificate or key is not in PEM format") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise TlsError("the authority's key does not belong to its certificate")
        return cls(certificate, key)

    @property
    def issued(self) -> Issued:
        """Return the authority's own certificate and key."""
        return _pem(self._certificate, self._key)

    def issue(self, name: str, hosts: Sequence[str], days: int) -> Issued:
        """Issue a server certificate for these names and IP addresses, or a client certificate if there are none."""
        key = _new_key()
        return _pem(_certificate(name, hosts, key, days, (self._certificate, self._key)), key)


def self_signed() -> bytes:
    """Return a self-signed certificate and its key in one PEM text."""
    issued = Authority.new("CometMQ test certificate", _SELF_SIGNED_DAYS).issued
    return issued.certificate + issued.key


def _require_cryptography() -> None:
    require("making certificates", SERVER, "cryptography")


def _new_key() -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _certificate(
    name: str,
    hosts: Sequence[str],
    key: ec.EllipticCurvePrivateKey,
    days: int,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None,
) -> x509.Certificate:
    """Issue a certificate signed by ``issuer``, or an authority's certificate if there is no issuer."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    signer = key if issuer is None else issuer[1]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(_usage(is_authority=issuer is None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if issuer is not None:
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_host, hosts))), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    ip = parsed_ip(host)
    return x509.DNSName(host) if ip is None else x509.IPAddress(ip)


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Issued:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return Issued(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
