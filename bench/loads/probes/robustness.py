"""Probes of fetch sessions, hostile frames and kill -9, and of the cost of running a server."""

import contextlib
import signal
import statistics
import time

from bench.loads import peers
from bench.loads.contenders import Mode, again
from bench.loads.probes.configs import alter, described
from bench.loads.probes.groups import half_by_half
from bench.loads.probes.place import Place, Probe, expect
from tests.clients.python_clients import Confluent
from tests.support import hostile, wire
from tests.support.broker import wait_for
from tests.support.client import Client, SteadyProducer


def fetch_session(place: Place) -> None:
    """An incremental fetch returns new records, and an empty response if there are none."""
    topic = place.create("session")
    place.send(topic, [b"first"])
    with Client(place.bootstrap) as client:
        client.fetch(topic)  # session (0, -1): no session
        expect(client.end()["SessionId"] == 0, "a session that the client did not request")
        client.fetch(topic, session=(0, 0), offset=1)
        number = client.end()["SessionId"]
        expect(number > 0, "no session is made")
        client.fetch(topic, session=(number, 1), max_wait_ms=100)
        response = client.end()
        expect(response["ErrorCode"] == 0, f"incremental fetch: error {response['ErrorCode']}")
        expect(response["Responses"] == [], "an incremental fetch repeats what has not changed")
        place.send(topic, [b"second"])
        client.fetch(topic, session=(number, 2), max_wait_ms=1000)
        response = client.end()
        expect(response["Responses"], "an incremental fetch does not bring the new record")


def hostile_frames(place: Place) -> None:
    """A producer continues while other clients send garbage, wrong lengths and malformed bodies."""
    steady_topic, topic = place.create("steady"), place.create("hostile")
    steady = SteadyProducer(place.bootstrap, steady_topic)
    try:
        frames = [*hostile.sizes(), *hostile.headers(), *hostile.bodies(topic)]
        with contextlib.ExitStack() as held:
            for frame in frames:
                connection = held.enter_context(wire.Connection(place.bootstrap))
                with contextlib.suppress(wire.Closed, OSError):
                    connection.send_raw(frame.data)
                expect(steady.is_unharmed(), f"after '{frame.name}' the other client: {steady.failures}")
            wait_for("a new client gets a response", lambda: wire.responses(place.bootstrap), 5)
    finally:
        steady.stop()


def killed(place: Place) -> str | None:
    """Acknowledged records, a topic's config and committed offsets exist after kill -9 and a restart."""
    if not place.contender.keeps:
        return "in memory"
    with place.contender.start(Mode.DISK) as server:
        here = Place(place.contender, server)
        topic = here.create("killed")
        alter(here, topic, "retention.ms", "123456789")
        values = [b"%d" % n for n in range(2000)]
        here.send(topic, values, {"acks": "all", "enable.idempotence": True})
        group = half_by_half(here)
        with again(server, signal.SIGKILL) as (restarted, _):
            here = Place(place.contender, restarted)
            found = here.values(topic)
            expect(found == values, f"{len(found)} of {len(values)} acknowledged records are there")
            expect(described(here, topic, "retention.ms") == "123456789", "the topic's config is lost")
            (committed,) = Confluent(here.bootstrap).committed(group, group, 1)
            expect(committed == 20, f"the group's offset is {committed} instead of 20")
    return None


def start_time(place: Place) -> str:
    """Return the median of three times from the start of a stopped server's process to its first Metadata response."""
    taken = []
    for _ in range(3):
        with place.contender.start(Mode.DISK) as server, again(server, signal.SIGTERM) as (_, seconds):
            taken.append(seconds)
    return f"{statistics.median(taken) * 1000:,.0f} ms"


def idle_memory(place: Place) -> str:
    """Return the resident memory, with child processes, of a server that has responded once."""
    with place.contender.start(Mode.DISK) as server:
        wait_for("it responds", lambda: wire.responses(server.bootstrap), 10)
        time.sleep(2)
        return f"{peers.resident_bytes(server.pid) / (1 << 20):,.0f} MiB"


PROBES = [
    Probe("fetch sessions (KIP-227)", fetch_session, short=False),
    Probe("garbage, false lengths and bodies do not affect other clients", hostile_frames, 90),
    Probe("acknowledged records, configs, offsets after kill -9", killed, 240),
]
COSTS = [
    Probe("start to the first Metadata response", start_time, 240, figure=True, short=False),
    Probe("idle memory", idle_memory, 120, figure=True),
]
