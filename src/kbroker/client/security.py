"""TLS and SASL of a client, from the properties that Apache Kafka's tools accept with ``--command-config``.

The names of librdkafka (``sasl.username``, ``ssl.ca.location`` ...) are accepted too; other properties are ignored,
but a misspelling of one of these names is an error.
"""

import copy
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kbroker.client.cluster import Cluster, check
from kbroker.client.connection import (
    WITHOUT_LOGIN,
    Address,
    BrokerConnectionError,
    Connection,
    format_address,
    open_plaintext,
)
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.security import scram
from kbroker.common.security.jaas import parse_jaas
from kbroker.common.security.pem import normal_pem, pem_file, reason_of
from kbroker.common.security.tls_peers import sent_other_bytes
from kbroker.common.similar_names import misspelled_name

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", *scram.MECHANISMS)
RENEW_AFTER = 0.85  # part of a session's lifetime, the earliest time of Java clients
#: Names that have an effect here, by Kafka and by librdkafka.
PROPERTIES = (
    *("security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.jaas.config", "sasl.username", "sasl.password"),
    *("ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.certificates", "ssl.ca.location", "ssl.ca.pem"),
    *("ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.key", "ssl.keystore.certificate.chain"),
    *("ssl.certificate.location", "ssl.key.location", "ssl.key.password"),
    *("ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification"),
)
PROBE_TIMEOUT_S = 2.0
#: Properties of other clients without effect here, whose names are similar to these.
OTHER_PROPERTIES = ("ssl.truststore.password", "ssl.keystore.password", "ssl.key.pem", "ssl.certificate.pem")


@dataclass(frozen=True)
class Sasl:
    """Credentials and mechanism of a login. ``is_token``: they are the id and secret of a delegation token."""

    mechanism: str
    user: str
    password: str = field(repr=False)
    is_token: bool = False

    def authenticate(self, connection: Connection) -> None:
        """Log in on a new connection, or renew a session.

        Raises: KafkaError with the broker's message; BrokerConnectionError.
        """
        where = format_address(connection.address)
        response = connection.request(SASL_HANDSHAKE, 1, {"Mechanism": self.mechanism})
        if response["ErrorCode"] == Errors.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(response["Mechanisms"]) or "none"
            raise KafkaError(
                Errors.UNSUPPORTED_SASL_MECHANISM,
                f"{where}: expected one of its mechanisms ({offered}), got {self.mechanism}",
            )
        if response["ErrorCode"] == Errors.ILLEGAL_SASL_STATE:
            raise KafkaError(
                Errors.ILLEGAL_SASL_STATE,
                f"{where}: expected a listener with SASL, got one without: change security.protocol or the port",
            )
        check(response["ErrorCode"], f"{where}: SaslHandshake")
        if self.mechanism == "PLAIN":
            self._send(connection, f"\0{self.user}\0{self.password}".encode())
            return
        client = scram.ScramClient(scram.MECHANISMS[self.mechanism], self.user, self.password, is_token=self.is_token)
        try:
            challenge = self._send(connection, client.first())
            client.check(self._send(connection, client.final(challenge)))
        except scram.ScramError as error:
            raise KafkaError(Errors.SASL_AUTHENTICATION_FAILED, f"{where}: {error}") from None

    def _send(self, connection: Connection, token: bytes) -> bytes:
        version = min(2, connection.versions.get(SASL_AUTHENTICATE, (0, 2))[1])
        response = connection.request(SASL_AUTHENTICATE, version, {"AuthBytes": token})
        check(response["ErrorCode"], format_address(connection.address), response["ErrorMessage"])
        lifetime_ms = response.get("SessionLifetimeMs", 0)
        connection.renew_after(lifetime_ms / 1000 * RENEW_AFTER if lifetime_ms > 0 else None)
        return bytes(response["AuthBytes"])


class ClientSecurity:
    """Security settings of a client. ``open_stream`` and ``authenticate`` are arguments of a ``Cluster``.

    Args: ``properties`` by Kafka's names (``security.protocol``, ``sasl.mechanism``, ``sasl.jaas.config``, ``ssl.*``).
    Raises: ValueError that names the invalid key and the allowed values.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        for name in properties:
            if name not in PROPERTIES and name not in OTHER_PROPERTIES:
                meant = misspelled_name(name, PROPERTIES)
                if meant is not None:
                    raise ValueError(f"unknown property {name}; did you mean {meant}?")
        protocol = properties.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in PROTOCOLS:
            raise ValueError(f"security.protocol must be one of {', '.join(PROTOCOLS)}, got {protocol!r}")
        self.protocol = protocol
        self.sasl = _sasl(properties) if protocol.startswith("SASL_") else None
        self._context = _context(properties) if protocol.endswith("SSL") else None

    def as_user(self, user: str, password: str) -> "ClientSecurity":
        """Return the same settings with another login. Raises: ValueError if the protocol has none."""
        if self.sasl is None:
            raise ValueError(f"expected a protocol with SASL, got {self.protocol}")
        other = copy.copy(self)
        other.sasl = Sasl(self.sasl.mechanism, user, password)
        return other

    def open_cluster(self, bootstrap: str, **settings: Any) -> Cluster:
        """Open a `Cluster` with these settings. Args and raises: as `Cluster`."""
        return Cluster(bootstrap, open_stream=self.open_stream, authenticate=self.authenticate, **settings)

    def open_stream(self, address: Address, timeout_s: float) -> socket.socket:
        """Connect, with TLS if the protocol requires it; each wait lasts at most ``timeout_s`` seconds.

        Raises: OSError, including TLS errors; BrokerConnectionError for a listener without TLS.
        """
        sock = open_plaintext(address, timeout_s)
        if self._context is None:
            return sock
        try:
            return self._context.wrap_socket(sock, server_hostname=address[0])
        except BaseException as error:
            sock.close()
            if _is_without_tls(error):
                text = "expected a listener with TLS, got none: change security.protocol or the port"
                raise BrokerConnectionError(address, text) from None
            raise

    def authenticate(self, connection: Connection) -> None:
        """Log in, if the protocol requires it."""
        if self.sasl is None:
            connection.closed_hint = WITHOUT_LOGIN
        else:
            self.sasl.authenticate(connection)


def _is_without_tls(error: BaseException) -> bool:
    """Return whether a handshake failed as with a peer without TLS: it closes the connection, or sends other bytes."""
    if isinstance(error, ssl.SSLError):
        return isinstance(error, ssl.SSLEOFError) or sent_other_bytes(error)
    return isinstance(error, ConnectionResetError)


def requires_tls(address: tuple[str, int], deadline: float, clock: Callable[[], float]) -> bool:
    """Return whether a listener takes part in a TLS handshake on another connection.

    A peer that takes longer than ``PROBE_TIMEOUT_S``, or than the deadline by the clock, does not.
    """
    deadline = min(deadline, clock() + PROBE_TIMEOUT_S)
    if deadline <= clock():
        return False
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(address, deadline - clock()) as other:
            left_s = deadline - clock()
            if left_s <= 0:
                return False
            other.settimeout(left_s)
            with context.wrap_socket(other):  # the time-out is that of the whole handshake
                return True
    except ssl.SSLError as error:  # a TLS listener may refuse the handshake, for example the version
        return not _is_without_tls(error)
    except OSError:  # for example, from a broker that stops
        return False


def _sasl(properties: Mapping[str, str]) -> Sasl:
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI"
    if mechanism not in MECHANISMS:
        raise ValueError(f"sasl.mechanism must be one of {', '.join(MECHANISMS)}, got {mechanism!r}")
    user, password = properties.get("sasl.username"), properties.get("sasl.password")
    line = properties.get("sasl.jaas.config")
    is_token = False
    if line:
        try:
            options = parse_jaas(line).options
        except ValueError as error:
            raise ValueError(f"sasl.jaas.config: {error}") from None
        user, password = options.get("username"), options.get("password")
        is_token = options.get(scram.TOKEN_AUTH, "").lower() == "true"
    if not user or password is None:
        raise ValueError("expected username and password in sasl.jaas.config, or sasl.username and sasl.password")
    if is_token and mechanism == "PLAIN":
        raise ValueError(f"sasl.mechanism must be one of {', '.join(scram.MECHANISMS)} with tokenauth, got PLAIN")
    return Sasl(mechanism, user, password, is_token)


def _context(properties: Mapping[str, str]) -> ssl.SSLContext:
    for key in ("ssl.keystore.type", "ssl.truststore.type"):
        if properties.get(key, "PEM").upper() != "PEM":
            raise ValueError(f"{key} must be PEM, got {properties[key]!r}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "https"
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _trust(context, properties)
    _own_key(context, properties)
    return context


def _trust(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    location = properties.get("ssl.truststore.location") or properties.get("ssl.ca.location")
    given = properties.get("ssl.truststore.certificates") or properties.get("ssl.ca.pem")
    if location and given:
        raise ValueError("ssl.truststore.location: expected a file or the certificates themselves, got both")
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Java: the roots of trusted certificates may be absent
    try:
        if location:
            context.load_verify_locations(cafile=location)
        elif given:
            context.load_verify_locations(cadata=normal_pem(given))
        else:
            context.load_default_certs()
    except (OSError, ValueError) as error:
        raise ValueError(f"ssl.truststore.location: {location or 'the certificates'}: {reason_of(error)}") from None


def _own_key(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    location = properties.get("ssl.keystore.location") or properties.get("ssl.certificate.location")
    key_location = properties.get("ssl.key.location")
    key, chain = properties.get("ssl.keystore.key"), properties.get("ssl.keystore.certificate.chain")
    password = properties.get("ssl.key.password", "")
    if location and (key or chain):
        raise ValueError("ssl.keystore.location: expected a file or the key itself, got both")
    if bool(key) != bool(chain):
        given = "ssl.keystore.key" if key else "ssl.keystore.certificate.chain"
        raise ValueError(f"{given}: expected ssl.keystore.key and ssl.keystore.certificate.chain, got only one of them")
    try:
        if location:
            context.load_cert_chain(location, key_location, password=lambda: password)
        elif key and chain:
            with pem_file(key, chain) as path:
                context.load_cert_chain(path, password=lambda: password)
    except (OSError, ValueError) as error:
        raise ValueError(f"ssl.keystore.location: {location or 'the key'}: {reason_of(error)}") from None
