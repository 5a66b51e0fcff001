"""Broker with a listener of each protocol, and the properties of clients for them."""

import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

from kbroker._core.clock import BaseClock
from kbroker.client.cluster import Cluster
from kbroker.client.security import ClientSecurity
from kbroker.client.users import Users
from kbroker.testing.embedded import EmbeddedBroker
from tests.support.certificates import Certificates
from tests.support.client import Client
from tests.support.wire import Connection

PASSWORDS = {"alice": "alice-secret", "bob": "bob-secret, with=marks"}
LISTENERS = {"PLAINTEXT": "PLAINTEXT", "TLS": "SSL", "SASL": "SASL_PLAINTEXT", "BOTH": "SASL_SSL"}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required {};"


def settings(certificates: Certificates) -> dict[str, object]:
    """Return the settings of a broker with all four listeners, with PLAIN and SCRAM on those with SASL."""
    users = PLAIN.format(" ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items()))
    return {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items()),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl.plain.sasl.jaas.config": users,
        "listener.name.both.plain.sasl.jaas.config": users,
        "ssl.keystore.location": certificates.server,
        "ssl.truststore.location": certificates.ca,
        "listener.name.tls.ssl.client.auth": "requested",
    }


class SecuredBroker:
    """EmbeddedBroker with ``settings``, its addresses by listener, and SCRAM users with PASSWORDS on request."""

    def __init__(
        self, certificates: Certificates, changes: Mapping[str, object] | None = None, clock: BaseClock | None = None
    ) -> None:
        self.certificates = certificates
        self.broker = EmbeddedBroker({**settings(certificates), **(changes or {})}, clock=clock)

    def __enter__(self) -> "SecuredBroker":
        self.broker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.stop()

    def address(self, listener: str) -> str:
        for bound in self.broker.bound_listeners:
            name, _, address = bound.partition("://")
            if name == listener:
                return address
        raise KeyError(listener)

    def connect(self, listener: str, client_id: str = "client") -> Client:
        """Return a connection without any request."""
        return Client(self.address(listener), client_id)

    def connect_tls(self, listener: str, client_id: str = "client") -> Client:
        """Return a TLS connection without any request."""
        connection = self.connect(listener, client_id)
        connection.socket = self.tls_context().wrap_socket(connection.socket, server_hostname="127.0.0.1")
        return connection

    def tls_context(self, client: Path | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.certificates.ca))
        if client is not None:
            context.load_cert_chain(client)
        return context

    def add_scram_users(self) -> None:
        with Cluster(self.address("PLAINTEXT")) as cluster:
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                for user, password in PASSWORDS.items():
                    Users(cluster).set(user, mechanism, password, 4096)

    def properties(self, listener: str, mechanism: str = "PLAIN", user: str = "alice") -> dict[str, str]:
        """Return the properties of a client for Java clients and kbroker's clients."""
        found = {"security.protocol": LISTENERS[listener]}
        if "SASL" in LISTENERS[listener]:
            module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
            found["sasl.mechanism"] = mechanism
            found["sasl.jaas.config"] = (
                f"org.apache.kafka.common.security.{module} required "
                f'username="{user}" password="{PASSWORDS.get(user, "")}";'
            )
        if "SSL" in LISTENERS[listener]:
            found["ssl.truststore.type"] = "PEM"
            found["ssl.truststore.location"] = str(self.certificates.ca)
        return found

    def cluster(self, listener: str, changes: Mapping[str, str] | None = None, **options: object) -> Cluster:
        """Return kbroker's own client for a listener."""
        mechanism, user = str(options.pop("mechanism", "PLAIN")), str(options.pop("user", "alice"))
        security = ClientSecurity({**self.properties(listener, mechanism, user), **(changes or {})})
        return security.open_cluster(self.address(listener), **options)

    def counters(self) -> dict[str, int]:
        """Return the sums of the counters of all network threads."""
        total: dict[str, int] = {}
        for processor in self.broker.parts.server.processors:
            for name, value in processor.counters().items():
                total[name] = total.get(name, 0) + value
        return total


def is_closed(connection: Connection, seconds: float = 10) -> bool:
    """Return whether the broker closes the connection in time; close this side."""
    try:
        return connection.is_closed_within(seconds)
    finally:
        connection.close()


def dribble(sock: socket.socket, data: bytes) -> None:
    """Send data one byte at a time."""
    for at in range(len(data)):
        sock.sendall(data[at : at + 1])
