"""TLS and SASL settings of the client: certificates as files and as text, and settings that cannot be used."""

import contextlib
import ssl
from pathlib import Path
from typing import Any

import pytest

from kbroker.client.security import _context, _sasl, requires_tls
from tests.support.certificates import Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def one_line(path: Path) -> str:
    """Return PEM text without its line ends, which a properties file loses."""
    return path.read_text().replace("\n", " ")


def peer_names(client: ssl.SSLContext, certificates: Certificates) -> tuple[str, str]:
    """Return the common names that the client and a server that requests a certificate receive from each other."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificates.server)
    server.load_verify_locations(certificates.ca)
    server.verify_mode = ssl.CERT_OPTIONAL
    inbound, outbound = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(inbound, outbound, server_hostname="localhost"),
        server.wrap_bio(outbound, inbound, server_side=True),
    ]
    for _ in range(3):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    found = []
    for end in ends:
        rows: Any = (end.getpeercert() or {}).get("subject", ())
        subject = dict(field for row in rows for field in row)
        found.append(str(subject.get("commonName", "")))
    return found[0], found[1]


def test_certificates_as_files_and_as_text(certificates: Certificates) -> None:
    """Both forms have the same trust and the same own certificate."""
    own = certificates.make("alice", "alice")
    key, chain = own.with_suffix(".key"), own.with_suffix(".crt")
    files = {"ssl.truststore.location": str(certificates.ca), "ssl.keystore.location": str(own)}
    separate = {
        "ssl.ca.location": str(certificates.ca),
        "ssl.certificate.location": str(chain),
        "ssl.key.location": str(key),
    }
    text = {
        "ssl.truststore.certificates": one_line(certificates.ca),
        "ssl.keystore.key": one_line(key),
        "ssl.keystore.certificate.chain": one_line(chain),
    }
    for properties in (files, separate, text):
        assert peer_names(_context(properties), certificates) == ("localhost", "alice")
    assert peer_names(_context({"ssl.ca.pem": certificates.ca.read_text()}), certificates) == ("localhost", "")


def test_a_server_that_is_not_trusted(certificates: Certificates) -> None:
    """Without the authority the handshake fails, unless the verification is turned off."""
    with pytest.raises(ssl.SSLCertVerificationError):
        peer_names(_context({}), certificates)
    context = _context({"enable.ssl.certificate.verification": "false"})
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)
    assert peer_names(context, certificates) == ("", "")
    assert not _context({"ssl.endpoint.identification.algorithm": ""}).check_hostname


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"ssl.truststore.type": "JKS"}, "ssl.truststore.type must be PEM, got 'JKS'"),
        ({"ssl.truststore.certificates": "abc"}, "ssl.truststore.location: the certificates: not PEM"),
        (
            {"ssl.truststore.location": "/absent/ca.pem"},
            "ssl.truststore.location: /absent/ca.pem: No such file or directory",
        ),
        (
            {"ssl.keystore.key": "abc", "ssl.keystore.certificate.chain": "abc"},
            "ssl.keystore.location: the key: not PEM",
        ),
        (
            {"ssl.keystore.location": "/absent/key.pem"},
            "ssl.keystore.location: /absent/key.pem: No such file or directory",
        ),
        (
            {"ssl.keystore.key": "abc"},
            "ssl.keystore.key: expected ssl.keystore.key and ssl.keystore.certificate.chain, got only one of them",
        ),
        (
            {"ssl.keystore.certificate.chain": "abc"},
            "ssl.keystore.certificate.chain: expected ssl.keystore.key and ssl.keystore.certificate.chain, got only "
            "one of them",
        ),
        (
            {"ssl.keystore.location": "/absent/key.pem", "ssl.keystore.key": "abc"},
            "ssl.keystore.location: expected a file or the key itself, got both",
        ),
        (
            {"ssl.truststore.location": "/absent/ca.pem", "ssl.truststore.certificates": "abc"},
            "ssl.truststore.location: expected a file or the certificates themselves, got both",
        ),
    ],
)
def test_certificates_that_cannot_be_used(properties: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError) as refused:
        _context(properties)
    assert str(refused.value) == text


def test_files_with_other_content(certificates: Certificates) -> None:
    """A key without a certificate, and a certificate without its key, are refused with OpenSSL's reason."""
    key, other = certificates.server.with_suffix(".key"), certificates.make("bob", "bob").with_suffix(".key")
    chain = certificates.server.with_suffix(".crt")
    for properties, reason in (
        ({"ssl.truststore.location": str(key)}, "NO_CERTIFICATE_OR_CRL_FOUND"),
        ({"ssl.certificate.location": str(chain), "ssl.key.location": str(other)}, "KEY_VALUES_MISMATCH"),
        ({"ssl.keystore.location": str(chain)}, "not PEM of a private key and its certificates"),
    ):
        with pytest.raises(ValueError, match=reason):
            _context(properties)


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({}, "sasl.mechanism must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, got 'GSSAPI'"),
        (
            {"sasl.mechanism": "PLAIN"},
            "expected username and password in sasl.jaas.config, or sasl.username and sasl.password",
        ),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": 'org.A required username="u"'},
            "sasl.jaas.config: the entry does not end with ';'",
        ),
        (
            {
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": 'org.A required username="u" password="p" tokenauth="true";',
            },
            "sasl.mechanism must be one of SCRAM-SHA-256, SCRAM-SHA-512 with tokenauth, got PLAIN",
        ),
    ],
)
def test_logins_that_cannot_be_used(properties: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError) as refused:
        _sasl(properties)
    assert str(refused.value) == text


@pytest.mark.parametrize("deadline", [4.0, 5.0])
def test_a_listener_is_not_searched_for_tls_after_the_deadline(deadline: float) -> None:
    """No connection is made: the address has no listener."""
    assert requires_tls(("256.0.0.0", 1), deadline, lambda: 5.0) is False
