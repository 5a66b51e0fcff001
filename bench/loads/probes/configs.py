"""Probes of a server's descriptions of itself, and of configs changed at run time."""

import time

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from bench.loads.probes.place import ANSWER_S, Lacking, Place, Probe, expect
from tests.support import wire


def api_count(place: Place) -> str:
    return str(len(wire.ranges(place.bootstrap)))


def described(place: Place, topic: str, name: str) -> str:
    (future,) = place.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return str(future.result(ANSWER_S)[name].value)


def alter(place: Place, topic: str, name: str, value: str | None) -> None:
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value, incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    (future,) = place.admin.incremental_alter_configs([resource]).values()
    future.result(ANSWER_S)


def is_too_large(place: Place, topic: str) -> bool:
    try:
        place.send(topic, [b"x" * 5000])
    except KafkaException as failure:
        expect(failure.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE, f"refused with {failure}")
        return True
    return False


def topic_configs(place: Place) -> None:
    """max.message.bytes of a topic is set, described, obeyed and reset."""
    topic = place.create("configs")
    before = described(place, topic, "max.message.bytes")
    for value, refused in (("2000", True), (None, False)):
        alter(place, topic, "max.message.bytes", value)
        deadline = time.monotonic() + 10
        while described(place, topic, "max.message.bytes") != (value or before):
            expect(time.monotonic() < deadline, "the described value does not change")
            time.sleep(0.1)
        while is_too_large(place, topic) != refused:
            if time.monotonic() > deadline:
                raise Lacking(
                    f"described as {value or before}, but 5,000 bytes are {'taken' if refused else 'refused'}"
                )
            time.sleep(0.1)


PROBES = [
    Probe("APIs that ApiVersions names", api_count, 20),
    Probe("topic config changed at run time takes effect", topic_configs, short=False),
]
