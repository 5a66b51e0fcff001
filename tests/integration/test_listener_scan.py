"""TLS versions, ciphers and renegotiation of the listeners, and half-open connections."""

import contextlib
import shutil
import ssl
import struct
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.integration.test_tls import client_hello
from tests.support.broker import wait_for
from tests.support.certificates import Certificates
from tests.support.descriptors import socket_count
from tests.support.secured import SecuredBroker
from tests.support.wire import API_VERSIONS, header

OPENSSL = shutil.which("openssl")
FRAME_TIMEOUT_MS = 1500
HALF_OPEN = 500


@pytest.fixture(scope="module")
def secured(certificates: Certificates) -> Iterator[SecuredBroker]:
    with SecuredBroker(certificates, {"kbroker.frame.timeout.ms": FRAME_TIMEOUT_MS}) as broker:
        yield broker


def s_client(secured: SecuredBroker, *options: str, typed: str = "Q\n") -> str:
    """Return the output of `openssl s_client`."""
    if OPENSSL is None:
        pytest.skip("the program openssl is not installed; on Debian: apt-get install openssl")
    command = [OPENSSL, "s_client", "-connect", secured.address("TLS"), "-cipher", "ALL:COMPLEMENTOFALL:@SECLEVEL=0"]
    done = subprocess.run([*command, *options], input=typed, capture_output=True, text=True, timeout=20, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize(("version", "is_served"), [("1", False), ("1_1", False), ("1_2", True), ("1_3", True)])
def test_versions_of_tls(secured: SecuredBroker, version: str, is_served: bool) -> None:
    """TLS 1.2 and 1.3 are served; older versions are refused with an alert."""
    found = s_client(secured, f"-tls{version}")
    assert ("Cipher is (NONE)" not in found) == is_served, found
    assert "Compression: NONE" in found
    if not is_served:
        assert "alert" in found


def test_ciphers(secured: SecuredBroker) -> None:
    """Each accepted cipher of TLS 1.2 has forward secrecy and authenticated encryption."""
    accepted = []
    for cipher in (row["name"] for row in all_ciphers()):
        context = secured.tls_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with contextlib.suppress(ssl.SSLError):  # this OpenSSL does not have the cipher
            context.set_ciphers(f"{cipher}:@SECLEVEL=0")
            with (
                contextlib.suppress(ssl.SSLError, ConnectionError),
                secured.connect("TLS") as connection,
                context.wrap_socket(connection.socket, server_hostname="127.0.0.1") as wrapped,
            ):
                accepted.append(wrapped.cipher()[0])  # type: ignore[index]
    assert accepted
    weak = [name for name in accepted if not name.startswith(("ECDHE-", "DHE-"))]
    weak += [name for name in accepted if not any(mode in name for mode in ("GCM", "CHACHA20", "CCM"))]
    assert weak == []


def all_ciphers() -> list[dict[str, str]]:
    """Return the ciphers of TLS 1.2 that the client's OpenSSL has, including insecure ones."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    return [row for row in context.get_ciphers() if row["protocol"] != "TLSv1.3"]  # type: ignore[misc]


def test_renegotiation_is_refused(secured: SecuredBroker) -> None:
    """Renegotiation of a TLS 1.2 connection is refused."""
    found = s_client(secured, "-tls1_2", typed="R\n")
    assert "RENEGOTIATING" in found
    assert "no renegotiation" in found, found


def test_half_open_connections_are_closed_in_time(secured: SecuredBroker) -> None:
    """500 connections that stop in a handshake, a token or a request are closed in time; others are served."""
    hello = client_hello(secured.tls_context())[2].read()
    frame = struct.pack(">i", 1000) + b"\0\x12\0\0"
    kinds = [("TLS", b""), ("TLS", hello[:50]), ("BOTH", hello[:-1]), ("SASL", frame), ("PLAINTEXT", frame)]
    before = socket_count()
    begun = time.monotonic()
    crowd = []
    try:
        for number in range(HALF_OPEN):
            listener, data = kinds[number % len(kinds)]
            crowd.append(secured.connect(listener))
            crowd[-1].send_raw(data)
        opened = time.monotonic()
        assert opened - begun < 20
        while time.monotonic() - opened < FRAME_TIMEOUT_MS / 1000:
            with secured.connect_tls("TLS") as connection:
                assert connection.ask(header(API_VERSIONS, 0))
        for connection in crowd:
            assert connection.is_closed_within(max(0.1, opened + FRAME_TIMEOUT_MS / 1000 + 2 - time.monotonic()))
    finally:
        for connection in crowd:
            connection.close()
    wait_for("the descriptors", lambda: socket_count() <= before)
