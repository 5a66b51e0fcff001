"""Client telemetry: subscriptions, subscription ids, push intervals, and refused pushes.

Each runs alone: a changed subscription lets a broker forget when any client has asked last.
"""

import gzip
import uuid

from tests.conformance.codec import Body
from tests.conformance.run import situation
from tests.conformance.situations.configs import CLIENT_METRICS, DELETE, SET, change
from tests.conformance.talk import Talk

GET, PUSH = "GetTelemetrySubscriptions", "PushTelemetry"
NO_ID = uuid.UUID(int=0)
#: Sets of metrics whose order in Kafka's hash sets, and so the subscription id, is not that of the config.
SETS = {
    "none": "",
    "one": "org.apache.kafka.producer.",
    "all": "org.apache.kafka.producer.,*,org.apache.kafka.consumer.",
    "several": "org.apache.kafka.producer.node.request.latency.,org.apache.kafka.consumer.coordinator.,a,b,c,d",
    "many": ",".join(f"org.apache.kafka.part{number}." for number in range(40)),
}


def instance(number: int, case: str = "") -> uuid.UUID:
    """Return the id of a client of a case: the same in each run, as its subscription id depends on it."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"kbroker:{number}{case}")


def get(client_instance_id: uuid.UUID) -> Body:
    return {"ClientInstanceId": client_instance_id}


def push(
    client_instance_id: uuid.UUID, subscription_id: int, data: bytes = b"", codec: int = 0, *, is_last: bool = False
) -> Body:
    return {
        "ClientInstanceId": client_instance_id,
        "SubscriptionId": subscription_id,
        "Terminating": is_last,
        "CompressionType": codec,
        "Metrics": data,
    }


def metrics_of(size_bytes: int) -> bytes:
    """Return metrics in OTLP of this size: one field that no receiver knows."""
    left = size_bytes - 4
    return bytes([0x7A, left & 0x7F | 0x80, left >> 7 & 0x7F | 0x80, left >> 14]) + bytes(left)


def subscribe(talk: Talk, label: str, **configs: str) -> None:
    """Make a subscription of this conversation's clients, and wait until the broker has it."""
    name = talk.name(label)
    client_id = talk.name("c")
    rows = [(key.replace("_", "."), SET, value) for key, value in configs.items()]
    before = requested(talk)
    response = talk.quietly(
        "IncrementalAlterConfigs", 1, change(CLIENT_METRICS, name, *rows, ("match", SET, f"client_id={client_id}"))
    )
    assert response["Responses"][0]["ErrorCode"] == 0, response
    talk.at_end(lambda: unsubscribe(talk, name))
    talk.until(f"subscription {name}", lambda: requested(talk) != before)


def unsubscribe(talk: Talk, name: str) -> None:
    rows = [(key, DELETE, None) for key in ("metrics", "interval.ms", "match")]
    talk.quietly("IncrementalAlterConfigs", 1, change(CLIENT_METRICS, name, *rows))


def requested(talk: Talk) -> object:
    """Return what a new client of this conversation is asked for."""
    talk.call("watch", talk.name("c"))
    response = talk.quietly(GET, 0, get(NO_ID), on="watch")
    return response["RequestedMetrics"], response["PushIntervalMs"]


def ready(talk: Talk, **configs: str) -> None:
    """Make the subscription of the conversation's clients."""
    subscribe(talk, "s", **(configs or {"metrics": "a.b", "interval_ms": "3600000"}))


def of(talk: Talk, number: int) -> str:
    """Return the connection of a client: a broker forgets only the latest client of a connection at its end."""
    name = f"client {number}"
    if name not in talk.connections:
        talk.call(name, talk.name("c"))
    return name


def granted(talk: Talk, number: int, case: str = "") -> int:
    """Ask for the subscription id of a client."""
    found: int = talk.also(GET, 0, get(instance(number, case)), "granted", on=of(talk, number))["SubscriptionId"]
    return found


@situation(GET, "0", alone=True)
def without_a_subscription(talk: Talk) -> None:
    """A new id; the client's own id; the same once more, before the interval has passed."""
    response = talk.ask(get(NO_ID), "a new client", without=("ClientInstanceId", "SubscriptionId"))
    talk.observe("it has an id", response["ClientInstanceId"] != NO_ID)
    talk.ask(
        get(instance(1)),
        "a client with an id",
        in_order=("RequestedMetrics", "AcceptedCompressionTypes"),
        on=of(talk, 1),
    )
    talk.ask(get(instance(1)), "too early", on=of(talk, 1))
    talk.ask(get(uuid.UUID(int=1)), "a reserved id", on=of(talk, 0))


@situation(GET, "0", over=tuple(SETS), alone=True)
def metrics_and_ids(talk: Talk, name: str) -> None:
    """The order of the metrics, and the id of the set for three clients."""
    ready(talk, metrics=SETS[name], interval_ms="1234")
    for number in (2, 3, 4):
        talk.ask(get(instance(number, name)), f"client {number}", in_order=("RequestedMetrics",), on=of(talk, number))


@situation(GET, "0", alone=True)
def two_subscriptions(talk: Talk) -> None:
    """The metrics of both, each once, at the shorter interval."""
    ready(talk, metrics="x,y,z", interval_ms="5000")
    subscribe(talk, "t", metrics="z,w", interval_ms="700")
    talk.ask(get(instance(5)), on=of(talk, 5))


@situation(GET, "0", alone=True)
def changed(talk: Talk) -> None:
    """A changed subscription is granted before the interval has passed, and the old id is refused."""
    ready(talk)
    old = granted(talk, 6)
    talk.ask(get(instance(6)), "too early", on=of(talk, 6))
    subscribe(talk, "s", metrics="a.b,c", interval_ms="3600000")
    talk.also(PUSH, 0, push(instance(6), old, b"x"), "the old id", on=of(talk, 6))
    talk.ask(get(instance(6)), "the new one", on=of(talk, 6))


@situation(PUSH, "0", alone=True)
def accepted(talk: Talk) -> None:
    """At once after the grant, and not again; empty ones too; the last one early, and none after it."""
    ready(talk)
    current = granted(talk, 7)
    talk.ask(push(instance(7), current, b""), "first", on=of(talk, 7))
    talk.ask(push(instance(7), current, b""), "too early", on=of(talk, 7))
    talk.also(GET, 0, get(instance(7)), "too early", on=of(talk, 7))
    talk.ask(push(instance(7), current, b"", is_last=True), "the last one", on=of(talk, 7))
    talk.ask(push(instance(7), current, b""), "after the last one", on=of(talk, 7))
    talk.ask(push(instance(7), current, b""), "once more", on=of(talk, 7))


@situation(PUSH, "0", alone=True)
def unknown_clients(talk: Talk) -> None:
    """Ids that no client can have, and one that the broker has not seen."""
    ready(talk)
    talk.ask(push(NO_ID, 0), "no id")
    talk.ask(push(uuid.UUID(int=1), 0), "a reserved id")
    talk.ask(push(instance(8), 1), "a wrong subscription id", on=of(talk, 8))


@situation(PUSH, "0", alone=True)
def wrong_subscription(talk: Talk) -> None:
    """The client may ask again at once, and then push."""
    ready(talk)
    current = granted(talk, 9)
    talk.ask(push(instance(9), current + 1), "wrong", on=of(talk, 9))
    again = granted(talk, 9)
    talk.ask(push(instance(9), again), "right, but the refused push counts", on=of(talk, 9))
    talk.ask(push(instance(9), again, is_last=True), "the last one", on=of(talk, 9))


@situation(PUSH, "0", over=("-1", "5", "127"), alone=True)
def unknown_codec(talk: Talk, name: str) -> None:
    """The client may ask again at once."""
    ready(talk)
    current = granted(talk, 10, name)
    talk.ask(push(instance(10, name), current, b"x", int(name)), "unknown", on=of(talk, 10))
    granted(talk, 10, name)


@situation(PUSH, "0", alone=True)
def sizes(talk: Talk) -> None:
    """The limit of the compressed data, and of the decompressed."""
    ready(talk)
    limit = 1 << 20
    for number, data, codec, note in (
        (11, gzip.compress(metrics_of(limit), 1, mtime=0), 1, "as large as the limit once decompressed"),
        (12, gzip.compress(metrics_of(limit + 1), 1, mtime=0), 1, "larger once decompressed"),
        (13, bytes(limit + 1), 1, "larger"),
        (14, b"no gzip", 1, "not compressed"),
        (15, b"no zstd", 4, "not compressed, zstd"),
        (16, b"no lz4", 3, "not compressed, lz4"),
    ):
        talk.ask(push(instance(number), granted(talk, number), data, codec), note, on=of(talk, number))
        talk.also(GET, 0, get(instance(number)), "too early", on=of(talk, number))
