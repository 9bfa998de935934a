"""A certificate authority of the local Colab's own, and its one certificate.

With REQUESTS_CA_BUNDLE set to `ca`, a client believes that the server is Google, and only that server.
"""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_NOT_BEFORE = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER = datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Certificates:
    ca: Path
    chain: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(self.chain, self.key)
        return made


def make(folder: Path, hosts: Sequence[str]) -> Certificates:
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "local Colab")])
    ca = _signed(issuer, issuer, ca_key.public_key(), ca_key, x509.BasicConstraints(True, 0))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
    leaf = _signed(issuer, name, key.public_key(), ca_key, names)
    made = Certificates(folder / "ca.pem", folder / "chain.pem", folder / "key.pem")
    made.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    made.chain.write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    made.key.touch(0o600)
    made.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return made


def _signed(
    issuer: x509.Name,
    subject: x509.Name,
    public: ec.EllipticCurvePublicKey,
    key: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    is_ca = isinstance(extension, x509.BasicConstraints)
    builder = (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
        .add_extension(extension, critical=is_ca)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    if is_ca:
        others = (
            "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
            "key_agreement", "encipher_only", "decipher_only",
        )  # fmt: skip
        usage = dict.fromkeys(others, False)
        builder = builder.add_extension(
            x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True
        )
    return builder.sign(key, hashes.SHA256())
