"""Servers as needed by the probes of abilities: on disk, behind TLS or SASL, killed and restarted."""

import contextlib
import enum
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.loads import peers
from bench.loads.peers import Server, can_connect, free_port
from tests.support import wire
from tests.support.broker import wait_for
from tests.support.certificates import Certificates

Start = contextlib.AbstractContextManager[Server]

# Settings that save time: cleaning at once instead of after minutes, quota windows of 3 s, no initial rebalance delay.
QUICK = {
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "quota.window.num": "4",
    "group.initial.rebalance.delay.ms": "0",
}
SCRAM, JAAS = "SCRAM-SHA-256", "org.apache.kafka.common.security.scram.ScramLoginModule required;"
ADMIN, ADMIN_PASSWORD = "admin", "admin-secret"


class Skipped(Exception):
    """Exception for a probe that is impossible on this machine; the text has the missing prerequisite."""


class Mode(enum.Enum):
    """Ways to start a server."""

    PLAIN = "as it is"
    DISK = "with its data on disk, where it can"
    TLS = "behind TLS"
    SASL = "behind SASL/SCRAM, with ACLs where it has them"


@dataclass(frozen=True)
class Secured:
    """Server behind TLS or SASL, and librdkafka's settings for a client and for an administrator."""

    server: Server
    client: Mapping[str, Any]
    admin: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """One of the servers of the table.

    Args:
        name: of its column.
        keeps: whether a mode stores its data on disk.
        start: starts the server in mode PLAIN or DISK.
        start_secured: starts the server in mode TLS or SASL; raises MissingPeer if this is impossible.
    """

    name: str
    keeps: bool
    start: Callable[[Mode], Start]
    start_secured: Callable[[Mode], contextlib.AbstractContextManager[Secured]]


@contextlib.contextmanager
def certificates() -> Iterator[Certificates]:
    with tempfile.TemporaryDirectory(prefix="certificates-", ignore_cleanup_errors=True) as folder:
        yield Certificates(Path(folder))


def trusting(made: Certificates) -> dict[str, str]:
    return {"security.protocol": "SSL", "ssl.ca.location": str(made.ca)}


# ---- kbroker and Apache Kafka, which take the same settings


def by_settings(
    name: str, starter: Callable[..., Start], sasl_settings: Mapping[str, str], extra: Mapping[str, str]
) -> Contender:
    """Return a contender with Kafka's settings, which adds a listener for TLS or SASL."""

    @contextlib.contextmanager
    def start_secured(mode: Mode) -> Iterator[Secured]:
        port = free_port()
        protocol = "SSL" if mode is Mode.TLS else "SASL_PLAINTEXT"
        second = f"{protocol}://127.0.0.1:{port}"
        with certificates() as made:
            if mode is Mode.TLS:
                keys = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(made.server)}
                client = trusting(made)
            else:
                keys, client = dict(sasl_settings), {"security.protocol": protocol}
            with starter({**QUICK, **extra, **keys}, second) as server:
                plain = {"bootstrap.servers": server.bootstrap}
                yield Secured(Server(name, port, server.pid), client, plain)

    return Contender(name, True, lambda mode: starter({**QUICK, **extra}), start_secured)


WITH_ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


def kbroker() -> Contender:
    return by_settings("kbroker", peers.kbroker, {"sasl.enabled.mechanisms": SCRAM, **WITH_ACLS}, {})


def kafka() -> Contender:
    acls = {
        "sasl.enabled.mechanisms": SCRAM,
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": JAAS,
        **WITH_ACLS,
    }
    return by_settings("Apache Kafka 4.3.1", peers.kafka, acls, {"log.initial.task.delay.ms": "500"})


# ---- the others, each with its own switches


def kfake() -> Contender:
    quick = ["-config", "log.cleaner.backoff.ms=500"]

    @contextlib.contextmanager
    def start(mode: Mode) -> Iterator[Server]:
        with tempfile.TemporaryDirectory(prefix="kfake-data-", ignore_cleanup_errors=True) as folder:
            disk = ["-data", folder] if mode is Mode.DISK else []
            with peers.kfake([*quick, *disk]) as server:
                yield server

    @contextlib.contextmanager
    def start_secured(mode: Mode) -> Iterator[Secured]:
        with certificates() as made:
            if mode is Mode.TLS:
                with peers.kfake([*quick, "-certificate", str(made.server)]) as server:
                    yield Secured(server, trusting(made), trusting(made))
                return
            client = {"security.protocol": "SASL_PLAINTEXT"}
            admin = {"sasl.mechanism": SCRAM, "sasl.username": ADMIN, "sasl.password": ADMIN_PASSWORD}
            with peers.kfake([*quick, "-superuser", f"{ADMIN}:{ADMIN_PASSWORD}"]) as server:
                yield Secured(server, client, {**client, **admin})

    return Contender("kfake", True, start, start_secured)


def tansu() -> Contender:
    @contextlib.contextmanager
    def start_secured(mode: Mode) -> Iterator[Secured]:
        with certificates() as made:
            if mode is Mode.TLS:
                with peers.tansu(["--cert", str(made.server), "--key", str(made.server)]) as server:
                    yield Secured(server, trusting(made), trusting(made))
                return
            with peers.tansu() as server:  # with --authentication no client could authenticate to add the first user
                yield Secured(server, {"security.protocol": "SASL_PLAINTEXT"})

    return Contender("Tansu", False, lambda mode: peers.tansu(), start_secured)


def noida() -> Contender:
    @contextlib.contextmanager
    def start_secured(mode: Mode) -> Iterator[Secured]:
        """Run noida-db, which has no option for TLS or SASL; the client tries both on its only port."""
        unchecked = {"security.protocol": "SSL", "enable.ssl.certificate.verification": False}
        with peers.noida() as server:
            yield Secured(server, unchecked if mode is Mode.TLS else {"security.protocol": "SASL_PLAINTEXT"})

    return Contender("noida-db", True, lambda mode: peers.noida(), start_secured)


CONTENDERS: dict[str, Callable[[], Contender]] = {
    "kbroker": kbroker,
    "kafka": kafka,
    "tansu": tansu,
    "kfake": kfake,
    "noida": noida,
}


# ---- ended and started again


def responds_to_metadata(port: int) -> bool:
    request = wire.header(wire.METADATA, 1) + b"\xff\xff\xff\xff"
    try:
        with wire.Connection(f"127.0.0.1:{port}", timeout=10) as connection:
            connection.ask(request)
    except (OSError, wire.Closed):
        return False
    return True


@contextlib.contextmanager
def again(server: Server, how: signal.Signals) -> Iterator[tuple[Server, float]]:
    """End a server by a signal and start it by the same command; yield it, and the seconds to the first Metadata."""
    process = Path(f"/proc/{server.pid}")
    command = [part.decode() for part in (process / "cmdline").read_bytes().split(b"\0")[:-1]]
    folder = os.readlink(process / "cwd")
    end(server.pid, how)
    wait_for("the server has stopped", lambda: not can_connect(server.port), 30)
    surroundings = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begun = time.monotonic()
    started = subprocess.Popen(
        command, cwd=folder, env=surroundings,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for("the server responds again", lambda: responds_to_metadata(server.port), 60, 0.001)
        yield Server(server.name, server.port, started.pid), time.monotonic() - begun
    finally:
        end(started.pid, signal.SIGKILL)
        started.wait(10)
        assert started.stdin is not None
        started.stdin.close()


def end(pid: int, how: signal.Signals) -> None:
    """Send a signal to a process and its children, and wait for their end."""
    family = peers.family(pid)
    for one in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, how)
    wait_for("the processes end", lambda: not any(peers.is_running(one) for one in family), 30)
