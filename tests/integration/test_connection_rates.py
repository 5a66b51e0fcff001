"""Connection rates of a socket server: held and delayed connections, changes at run time, stops."""

import contextlib
import socket
import struct
import threading
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.broker import Broker
from kbroker.common.configs.config_resource import ConfigChange, ConfigOperation, ConfigResourceType
from kbroker.common.listeners import Listener
from kbroker.common.quotas import QuotaEntity
from kbroker.network.options import ListenerLimits, SocketServerOptions
from kbroker.network.request_channel import RequestChannel
from kbroker.network.socket_server import SocketServer
from kbroker.quota.entity_rules import Alteration, QuotaOp
from tests.native import connection_admission as admission
from tests.native.echo import run_echo
from tests.support.closing import close_at_end
from tests.support.fixtures import fixture_of
from tests.support.socket_rig import PAUSE, until


class Rig:
    """Echo server with quota windows of 2 x 1 s and one network thread per listener."""

    def __init__(self, clock: VirtualClock | None, names: tuple[str, ...] = ("PLAINTEXT",), **options: object) -> None:
        self.channel = RequestChannel(capacity=50, clock=clock)
        settings: dict[str, object] = {
            "network_threads": 1,
            "quota_samples": 2,
            "inter_broker_listener": "INTERNAL",
            **options,
        }
        self.server = SocketServer(
            [Listener(name, "PLAINTEXT", "127.0.0.1", 0) for name in names],
            self.channel.queue,
            SocketServerOptions(**settings),  # type: ignore[arg-type]
            clock=clock,
        )
        self.server.start()
        self.quotas = self.server.connection_quotas
        self.clients: list[socket.socket] = []
        self._echo = threading.Thread(target=run_echo, args=(self.channel.queue,))
        self._echo.start()

    def connect(self, name: str = "PLAINTEXT") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.server.port(name)), 10)
        self.clients.append(client)
        return client

    def held(self) -> int:
        return sum(acceptor.held for acceptor in self.server.acceptors)

    def close(self) -> None:
        self.server.begin_stop()
        self.channel.close()
        self._echo.join(10)
        assert self.server.finish_stop()
        for client in self.clients:
            client.close()


clock = fixture_of(VirtualClock)


@pytest.fixture
def rig(clock: VirtualClock) -> Rig:
    return close_at_end(Rig(clock))


def is_served(client: socket.socket) -> bool:
    """Return whether a request receives a response; False if the server closes the connection."""
    with contextlib.suppress(ConnectionError):
        client.sendall(struct.pack(">i", 4) + b"ping")
        return client.recv(8) == struct.pack(">i", 4) + b"ping"
    return False


def is_closed(client: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return client.recv(1) == b""
    return True


def test_address_that_connects_too_fast_is_held_and_closed(rig: Rig, clock: VirtualClock) -> None:
    """Connections of an address above its rate are held for 2 s and closed; later ones are accepted (SS-11, SS-12)."""
    rig.quotas.update_ip_rate(None, 5)
    served = [rig.connect() for _ in range(5)]
    assert all(is_served(client) for client in served)
    held = [rig.connect()]
    until(lambda: rig.held() == 1, "the sixth is held")
    held.append(rig.connect())
    until(lambda: rig.held() == 2, "the seventh is held")
    assert (rig.quotas.count(), rig.quotas.throttled, rig.quotas.rate()) == (5, 2, 5)
    held[0].settimeout(0.05)
    with pytest.raises(TimeoutError):
        held[0].recv(1)  # neither served nor closed
    held[0].settimeout(10)
    clock.advance_ms(2000)
    assert all(is_closed(client) for client in held)
    assert is_served(rig.connect())
    assert all(is_served(client) for client in served)


def test_held_sockets_are_closed_after_their_time(rig: Rig, clock: VirtualClock) -> None:
    """A held connection is closed after its delay of 200 ms, and not before."""
    rig.quotas.update_ip_rate("127.0.0.1", 5)
    clients = [rig.connect() for _ in range(6)]
    until(lambda: rig.held() == 1, "the sixth is held")
    clock.advance_ms(200)
    PAUSE.wait(0.02)
    assert rig.held() == 1
    clock.advance_ms(1)
    assert is_closed(clients[5])
    until(lambda: rig.held() == 0, "nothing is held")


def test_held_sockets_are_closed_on_stop(clock: VirtualClock) -> None:
    """A stop closes held connections at once (SS-13)."""
    rig = Rig(clock)
    rig.quotas.update_ip_rate(None, 5)
    clients = [rig.connect() for _ in range(6)]
    until(lambda: rig.held() == 1, "the sixth is held")
    rig.close()
    assert clients[5].fileno() == -1
    assert rig.held() == 0
    assert rig.quotas.count() == 0


def test_listener_over_its_rate_is_delayed_and_served(clock: VirtualClock) -> None:
    """The acceptor of a listener above its rate waits for the exact delay; another listener accepts connections."""
    rig = Rig(clock, ("PLAINTEXT", "OTHER"), listener_limits={"PLAINTEXT": ListenerLimits(max_connection_rate=5)})
    for _ in range(5):
        assert is_served(rig.connect())
    late = rig.connect()
    until(lambda: rig.quotas.waiting("PLAINTEXT") == 1, "the acceptor waits")
    assert is_served(rig.connect("OTHER"))
    clock.advance_ms(199)
    PAUSE.wait(0.02)
    assert rig.quotas.waiting("PLAINTEXT") == 1
    clock.advance_ms(1)
    assert is_served(late)
    assert rig.server.acceptors[0].blocked_ns == 200_000_000
    assert rig.quotas.throttle_time("PLAINTEXT") == 200
    rig.close()


def test_inter_broker_listener_gets_in_when_the_server_is_full(clock: VirtualClock) -> None:
    """At `max.connections`, the inter-broker listener accepts, and the least active connection of another is closed."""
    rig = Rig(clock, ("PLAINTEXT", "INTERNAL"), max_connections=2)
    first, second = rig.connect(), rig.connect()
    assert is_served(first)
    assert is_served(second)
    waiting = rig.connect()
    until(lambda: rig.quotas.waiting("PLAINTEXT") == 1, "the third waits")
    assert is_served(rig.connect("INTERNAL"))
    assert is_closed(first)
    until(lambda: rig.quotas.count() == 2, "there are as many as allowed")
    second.close()
    assert is_served(waiting)
    rig.close()


def test_stop_while_an_acceptor_waits(clock: VirtualClock) -> None:
    """An acceptor that waits for a slot ends at once when its server stops."""
    rig = Rig(clock, max_connections=0)
    client = rig.connect()
    until(lambda: rig.quotas.waiting("PLAINTEXT") == 1, "the acceptor waits")
    rig.close()
    assert client.fileno() == -1
    assert rig.quotas.count() == 0


def test_rate_on_the_system_clock() -> None:
    """On the system clock, 60 connections at 40/s are delayed, and all are served."""
    rig = Rig(None, max_connection_rate=40)
    for _ in range(60):
        assert is_served(rig.connect())
    assert rig.quotas.rate() <= 41
    assert rig.server.acceptors[0].blocked_ns > 0
    rig.close()


def test_limits_change_by_configs() -> None:
    """Limits of broker and listener are in force, and removed, when the change of the config returns."""
    with Broker(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0,EXTERNAL://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT",
            "listener.name.external.max.connections": 7,
            "kbroker.in.memory": True,
        }
    ) as broker:
        quotas, dynamic = broker.context.connection_quotas, broker.context.dynamic

        def room(listener: str) -> int:
            """Return the number of further connections that the listener accepts."""
            taken = 0
            while taken < 50 and admission.has_slot(quotas, listener):
                admission.admit(quotas, listener, "10.0.0.1")
                taken += 1
            for _ in range(taken):
                admission.dec(quotas, listener, "10.0.0.1")
            return taken

        def alter(name: str, value: str | None, node: str = "1") -> None:
            operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
            dynamic.alter(ConfigResourceType.BROKER, node, [ConfigChange(name, operation, value)])

        assert (room("EXTERNAL"), room("PLAINTEXT")) == (7, 50)
        alter("listener.name.external.max.connections", "3")
        assert room("EXTERNAL") == 3
        alter("listener.name.external.max.connections", None)
        assert room("EXTERNAL") == 7
        alter("max.connections", "5", "")
        assert (room("EXTERNAL"), room("PLAINTEXT")) == (5, 5)
        alter("max.connection.creation.rate", "1", "")
        assert [admission.begin(quotas, "EXTERNAL") for _ in range(12)][-1] == 1000
        alter("max.connection.creation.rate", None, "")
        assert admission.begin(quotas, "EXTERNAL") == 0
        alter("listener.name.external.max.connection.creation.rate", "1", "")
        assert admission.begin(quotas, "EXTERNAL") == 1000
        for name in ("max.connections", "max.connection.creation.rate"):
            with pytest.raises(Exception, match=rf"Invalid {name} 0"):
                alter(f"listener.name.external.{name}", "0")
        assert admission.has_slot(quotas, "EXTERNAL")


def test_quota_of_an_address_is_in_force_and_survives_a_restart(tmp_path: Path) -> None:
    """The `connection_creation_rate` of an address limits new connections at once, and after a restart."""
    config = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dir": str(tmp_path)}
    alteration = Alteration(QuotaEntity.of({"ip": "127.0.0.1"}), [QuotaOp("connection_creation_rate", 2.0)])
    with Broker(config) as broker:
        (result,) = broker.context.quota_entities.alter([alteration]).values()
        assert result is None
        quotas = broker.context.connection_quotas
        for _ in range(20):
            admission.inc(quotas, "PLAINTEXT", "127.0.0.1")
        with pytest.raises(admission.ConnectionThrottledError):
            admission.inc(quotas, "PLAINTEXT", "127.0.0.1")
    with Broker(config) as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        clients = [socket.create_connection((host, int(port)), 10) for _ in range(21)]
        quotas = broker.context.connection_quotas
        until(lambda: quotas.throttled == 1, "the twenty-first is held")
        assert quotas.count("127.0.0.1") == 20
        for client in clients:
            client.close()
