"""Certificates for tests, made by trustme: an authority, a server, clients."""

from pathlib import Path

import trustme
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificates


class Certificates:
    """PEM files in a folder: ``ca`` signs; ``server`` is a keystore, with the key and the certificate in one file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ca = folder / "ca.pem"
        self._authority = trustme.CA()
        self._authority.cert_pem.write_to_path(str(self.ca))
        self.server = self._write(
            "server", self._authority.issue_cert("localhost", "127.0.0.1", common_name="localhost")
        )

    def make(self, name: str, common_name: str, *, unit: str = "Clients", organization: str = "Example, Inc.") -> Path:
        """Return a PEM file of a new key and a client's certificate with the subject CN=...,OU=...,O=..."""
        identity = f"{name}.test"  # Java rejects a certificate without alternative names
        leaf = self._authority.issue_cert(
            identity, common_name=common_name, organization_unit_name=unit, organization_name=organization
        )
        return self._write(name, leaf)

    def make_child(self, name: str) -> tuple[Path, Path]:
        """Return the PEM files of an authority signed by ``ca``, and of a key with a certificate of that authority."""
        authority = self._authority.create_child_ca()
        place = self.folder / f"{name}-ca.pem"
        authority.cert_pem.write_to_path(str(place))
        return place, self._write(name, authority.issue_cert(f"{name}.test", "127.0.0.1", common_name=name))

    def _write(self, name: str, leaf: trustme.LeafCert) -> Path:
        key, certificate, both = (self.folder / f"{name}.{kind}" for kind in ("key", "crt", "pem"))
        parsed = load_pem_private_key(leaf.private_key_pem.bytes(), None)
        key.write_bytes(parsed.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))  # Java needs PKCS 8
        leaf.cert_chain_pems[0].write_to_path(str(certificate))
        both.write_bytes(key.read_bytes() + certificate.read_bytes())
        return both


def pkcs12_store(pem: Path, password: bytes) -> bytes:
    """Return a PKCS 12 store of the certificates and, if present, the key of a PEM file, as keytool writes it."""
    data = pem.read_bytes()
    certificates = load_pem_x509_certificates(data)
    protection = BestAvailableEncryption(password)
    if b"PRIVATE KEY" not in data:
        return pkcs12.serialize_key_and_certificates(None, None, None, certificates, protection)
    key = load_pem_private_key(data, None)
    assert isinstance(key, RSAPrivateKey | EllipticCurvePrivateKey)
    return pkcs12.serialize_key_and_certificates(b"server", key, certificates[0], certificates[1:], protection)
