"""Client telemetry: subscriptions, subscription ids, push intervals, and refused pushes.

Each situation runs alone: after a change of a subscription, a broker no longer enforces the intervals of clients.
"""

import gzip
import uuid

from tests.conformance.codec import ZERO_ID, Body
from tests.conformance.run import situation
from tests.conformance.situations.configs import CLIENT_METRICS, DELETE, SET, change
from tests.conformance.talk import Talk

GET, PUSH = "GetTelemetrySubscriptions", "PushTelemetry"
#: Sets of metrics whose order in Kafka's hash sets, and therefore the subscription id, differs from the config's order.
SETS = {
    "none": "",
    "one": "org.apache.kafka.producer.",
    "all": "org.apache.kafka.producer.,*,org.apache.kafka.consumer.",
    "several": "org.apache.kafka.producer.node.request.latency.,org.apache.kafka.consumer.coordinator.,a,b,c,d",
    "many": ",".join(f"org.apache.kafka.part{number}." for number in range(40)),
}


def instance(number: int, case: str = "") -> uuid.UUID:
    """Return the id of a client of a case, which is the same in each run because its subscription id depends on it."""
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
    """Return metrics in OTLP of this size: one field that is unknown to receivers."""
    left = size_bytes - 4
    return bytes([0x7A, left & 0x7F | 0x80, left >> 7 & 0x7F | 0x80, left >> 14]) + bytes(left)


def subscribe(talk: Talk, label: str, **configs: str) -> None:
    """Create a subscription for this conversation's clients, and wait until the broker applies it."""
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
    """Return the metrics and the interval that a new client of this conversation receives."""
    talk.call("watch", talk.name("c"))
    response = talk.quietly(GET, 0, get(ZERO_ID), on="watch")
    return response["RequestedMetrics"], response["PushIntervalMs"]


def ready(talk: Talk, **configs: str) -> None:
    """Create the first subscription for the conversation's clients."""
    subscribe(talk, "s", **(configs or {"metrics": "a.b", "interval_ms": "3600000"}))


def of(talk: Talk, number: int) -> str:
    """Return a client's own connection: when a connection ends, a broker removes only its latest client."""
    name = f"client {number}"
    if name not in talk.connections:
        talk.call(name, talk.name("c"))
    return name


def granted(talk: Talk, number: int, case: str = "") -> int:
    """Request the subscription id of a client."""
    found: int = talk.also(GET, 0, get(instance(number, case)), "granted", on=of(talk, number))["SubscriptionId"]
    return found


@situation(GET, "0", alone=True)
def without_a_subscription(talk: Talk) -> None:
    """Request a subscription without an id, with an id, and again before the interval has passed."""
    response = talk.ask(get(ZERO_ID), "a new client", without=("ClientInstanceId", "SubscriptionId"))
    talk.observe("it has an id", response["ClientInstanceId"] != ZERO_ID)
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
    """Request the order of the metrics and the subscription id for three clients."""
    ready(talk, metrics=SETS[name], interval_ms="1234")
    for number in (2, 3, 4):
        talk.ask(get(instance(number, name)), f"client {number}", in_order=("RequestedMetrics",), on=of(talk, number))


@situation(GET, "0", alone=True)
def two_subscriptions(talk: Talk) -> None:
    """Request the metrics of two subscriptions, each once, and the shorter interval."""
    ready(talk, metrics="x,y,z", interval_ms="5000")
    subscribe(talk, "t", metrics="z,w", interval_ms="700")
    talk.ask(get(instance(5)), on=of(talk, 5))


@situation(GET, "0", alone=True)
def changed(talk: Talk) -> None:
    """Change a subscription: the new one is granted before the interval has passed, and the old id is refused."""
    ready(talk)
    old = granted(talk, 6)
    talk.ask(get(instance(6)), "too early", on=of(talk, 6))
    subscribe(talk, "s", metrics="a.b,c", interval_ms="3600000")
    talk.also(PUSH, 0, push(instance(6), old, b"x"), "the old id", on=of(talk, 6))
    talk.ask(get(instance(6)), "the new one", on=of(talk, 6))


@situation(PUSH, "0", alone=True)
def accepted(talk: Talk) -> None:
    """Push directly after the grant, too early, and for the last time, also with empty metrics."""
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
    """Push with ids that no client can have, and with an id that is unknown to the broker."""
    ready(talk)
    talk.ask(push(ZERO_ID, 0), "no id")
    talk.ask(push(uuid.UUID(int=1), 0), "a reserved id")
    talk.ask(push(instance(8), 1), "a wrong subscription id", on=of(talk, 8))


@situation(PUSH, "0", alone=True)
def wrong_subscription(talk: Talk) -> None:
    """Push with a wrong subscription id, request it again at once, and push."""
    ready(talk)
    current = granted(talk, 9)
    talk.ask(push(instance(9), current + 1), "wrong", on=of(talk, 9))
    again = granted(talk, 9)
    talk.ask(push(instance(9), again), "right, but the refused push counts", on=of(talk, 9))
    talk.ask(push(instance(9), again, is_last=True), "the last one", on=of(talk, 9))


@situation(PUSH, "0", over=("-1", "5", "127"), alone=True)
def unknown_codec(talk: Talk, name: str) -> None:
    """Push with an unknown codec, after which the subscription can be requested at once."""
    ready(talk)
    current = granted(talk, 10, name)
    talk.ask(push(instance(10, name), current, b"x", int(name)), "unknown", on=of(talk, 10))
    granted(talk, 10, name)


@situation(PUSH, "0", alone=True)
def sizes(talk: Talk) -> None:
    """Push metrics at the limits of the compressed and decompressed sizes, and data that cannot be decompressed."""
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
