"""Probes of TLS, SASL and ACLs, each on a server that supports them."""

import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from bench.loads.contenders import Mode, Secured
from bench.loads.probes.place import ANSWER_S, Config, Place, Probe, expect

USER, PASSWORD = "alice", "alice-secret"
SETTLED_S = 10.0  # other brokers need time until a new user or rule applies


def login(secured: Secured, password: str = PASSWORD) -> Config:
    return {
        **secured.client,
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": USER,
        "sasl.password": password,
    }


def add_user(place: Place, secured: Secured) -> None:
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    user = UserScramCredentialUpsertion(USER, credential, PASSWORD.encode())
    admin = place.secured(secured, secured.admin).admin
    (future,) = admin.alter_user_scram_credentials([user]).values()
    future.result(ANSWER_S)


def tls(place: Place) -> None:
    """Records are written and read over TLS, with a certificate that the client verifies."""
    with place.contender.start_secured(Mode.TLS) as secured:
        inside = place.secured(secured, secured.client)
        topic = inside.create("tls")
        inside.send(topic, [b"secret"])
        expect(inside.values(topic) == [b"secret"], "other records came back")


def refusal(place: Place) -> KafkaError | None:
    """Return the error that refuses an authentication, None if it succeeds."""
    errors: list[KafkaError] = []
    client = Producer(place.config({"error_cb": errors.append}))
    deadline = time.monotonic() + SETTLED_S
    while time.monotonic() < deadline:
        try:
            client.list_topics(timeout=1)
            return None
        except KafkaException as failure:
            client.poll(0.1)
            refusals = [error for error in errors if error.code() == KafkaError._AUTHENTICATION]
            if refusals:
                return refusals[0]
            last: KafkaError = failure.args[0]
    return last


def scram(place: Place) -> None:
    """A user is added at run time, and authenticates only with the right password."""
    with place.contender.start_secured(Mode.SASL) as secured:
        add_user(place, secured)
        inside = place.secured(secured, login(secured))
        deadline = time.monotonic() + SETTLED_S
        while (refused := refusal(inside)) is not None:
            expect(time.monotonic() < deadline, f"the right password is refused: {refused}")
        wrong = refusal(place.secured(secured, login(secured, "wrong")))
        expect(wrong is not None, "a wrong password is accepted")
        expect(refusal(inside) is None, "after a wrong password the right one is refused")


def acls(place: Place) -> None:
    """A user with write access to one topic writes to this topic, and is refused access to another one."""
    with place.contender.start_secured(Mode.SASL) as secured:
        add_user(place, secured)
        boss = place.secured(secured, secured.admin)
        allowed, other = boss.create("allowed"), boss.create("other")
        rule = AclBinding(
            ResourceType.TOPIC,
            allowed,
            ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            AclOperation.WRITE,
            AclPermissionType.ALLOW,
        )
        for future in boss.admin.create_acls([rule]).values():
            future.result(ANSWER_S)
        user = place.secured(secured, login(secured))
        deadline = time.monotonic() + SETTLED_S
        while (failure := refused_with(user, allowed)) is not None:
            expect(time.monotonic() < deadline, f"the topic that was allowed: {failure}")
        failure = refused_with(user, other)
        expect(failure is not None, "another topic is writable without a rule")
        expect(failure and failure.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, f"another topic: {failure}")


def refused_with(place: Place, topic: str) -> KafkaError | None:
    try:
        place.send(topic, [b"record"], {"message.timeout.ms": 5000, "enable.idempotence": False})
    except KafkaException as failure:
        error: Any = failure.args[0]
        assert isinstance(error, KafkaError)
        return error
    return None


PROBES = [
    Probe("TLS", tls, 200),
    Probe("SASL/SCRAM: users added at run time, wrong password refused", scram, 200, short=False),
    Probe("ACLs: allowed here, refused there", acls, 200),
]
