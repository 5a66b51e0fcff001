"""Published vulnerabilities of Apache Kafka that concern a broker or its protocol, each with a test of its absence.

Vulnerabilities of Kafka Connect (CVE-2019-12399, CVE-2023-25194), the clients (CVE-2026-35554) and Log4j do not apply.
CVE-2026-111115 (tags before authentication) and CVE-2026-111108 (counts) are covered by test_hostile_frames.py and
tests/unit/protocol/test_codec.py, CVE-2021-38153 (timing) by test_login_timing.py.
"""

import gzip
import os
import struct
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kbroker.testing import EmbeddedBroker
from tests.integration.test_authorization import EVERYTHING, SASL, create, delete, fetched, log_in, produced, rule
from tests.support import wire
from tests.support.broker import rss_bytes
from tests.support.client import Body, Client, fetch_body, produce_body, row_of, set_configs
from tests.support.fixtures import fixture_of
from tests.support.secured import SecuredBroker, is_closed

CLUSTER_AUTHORIZATION_FAILED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED = 31, 53, 29
UNSUPPORTED_SASL_MECHANISM, SASL_AUTHENTICATION_FAILED, INVALID_CONFIG, INVALID_REQUEST = 33, 58, 40, 42
INVALID_RECORD = 87
MAX_GROWTH_BYTES = 32 << 20
TRANSACTIONAL = 16
broker = fixture_of(EmbeddedBroker, SASL, topics={"mine": 1, "other": 1}, scope="module")


def as_user(broker: EmbeddedBroker, user: str) -> Client:
    return log_in(broker.bound_listeners[0].partition("://")[2], user)


@pytest.fixture
def root(broker: EmbeddedBroker) -> Iterator[Client]:
    with as_user(broker, "root") as client:
        yield client
        delete(client)


@pytest.fixture
def alice(broker: EmbeddedBroker) -> Iterator[Client]:
    with as_user(broker, "alice") as client:
        yield client


def token(connection: Client, data: bytes) -> Body:
    return connection.call("SaslAuthenticate", 2, {"AuthBytes": data})


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_cve_2017_12610_another_authorization_id(secured: SecuredBroker, mechanism: str) -> None:
    """A SASL message whose authorization id is not the authenticated user is refused."""
    with secured.connect("SASL") as connection:
        connection.call("SaslHandshake", 1, {"Mechanism": mechanism})
        first = b"bob\0alice\0alice-secret" if mechanism == "PLAIN" else b"n,a=bob,n=alice,r=nonce"
        response = token(connection, first)
        assert response["ErrorCode"] == SASL_AUTHENTICATION_FAILED
        assert "authorization id" in response["ErrorMessage"]
        assert is_closed(connection)


def test_cve_2018_1288_a_fetch_in_the_name_of_a_broker(root: Client, alice: Client) -> None:
    """A client's Fetch with a replica id neither reads without a permission nor affects the high watermark."""
    create(root, rule("mine", 3))
    assert produced(root, "mine") == 0
    assert fetched(alice, "mine") == 0
    for replica in (0, 1, 2, 2**31 - 1):
        body = {**fetch_body("mine"), "ReplicaId": replica}
        found = row_of(alice.call("Fetch", 12, body))
        assert (found["ErrorCode"], found["Records"] or b"") == (TOPIC_AUTHORIZATION_FAILED, b"")
        found = row_of(root.call("Fetch", 12, body))
        assert (found["ErrorCode"] != 0, found["Records"] or b"") == (True, b"")
    before = row_of(root.call("Fetch", 12, fetch_body("mine")))["HighWatermark"]
    assert produced(root, "mine") == 0
    assert row_of(root.call("Fetch", 12, fetch_body("mine")))["HighWatermark"] == before + 1


def test_cve_2018_17196_a_transactional_batch_without_the_permission(root: Client, alice: Client) -> None:
    """A transactional or idempotent batch needs the permission of its transactional id in any Produce request."""
    create(root, rule("mine"))
    batch = wire.batch([b"v"], attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0)
    named = {**produce_body("mine", batch, acks=-1), "TransactionalId": "not-mine"}
    assert row_of(alice.call("Produce", 9, named))["ErrorCode"] == TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    start = row_of(root.call("Fetch", 12, fetch_body("mine")))["HighWatermark"]
    for batches in (batch, wire.batch([b"v"]) + batch):
        response = row_of(alice.call("Produce", 9, produce_body("mine", batches, acks=-1)))
        assert response["ErrorCode"] != 0, "a transactional batch without a transactional id"
    assert row_of(root.call("Fetch", 12, fetch_body("mine")))["HighWatermark"] == start


def test_cve_2022_34917_memory_before_authentication(secured: SecuredBroker) -> None:
    """A client that is not authenticated cannot make the broker allocate the declared size of a frame."""
    before = rss_bytes(os.getpid())
    with ExitStack() as crowd:
        strangers = [crowd.enter_context(secured.connect("SASL")) for _ in range(200)]
        for stranger in strangers:
            stranger.send_raw(struct.pack(">i", 524_288) + b"\0")
        for size in (524_289, 100 << 20, 2**31 - 1):
            large = secured.connect("SASL")
            large.send_raw(struct.pack(">i", size) + b"\0\x12\0\0")
            assert is_closed(large)
        with secured.connect("SASL") as connection:
            assert connection.call("SaslHandshake", 1, {"Mechanism": "PLAIN"})["ErrorCode"] == 0
        assert rss_bytes(os.getpid()) - before <= MAX_GROWTH_BYTES


def snappy_header(size: int) -> bytes:
    return b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, size)


@pytest.mark.parametrize(
    "records",
    [
        *(snappy_header(size) + b"x" * 8 for size in (2**31 - 1, -1, -(2**31), 1 << 30)),
        snappy_header(5) + b"\xff\xff\xff\xff\x07",  # the block declares 2 GiB
        b"\xff\xff\xff\xff\x07" + b"x",
        b"\x82SNAPPY\x00" + bytes(3),
    ],
    ids=["2 GiB", "-1", "least", "1 GiB", "block of 2 GiB", "raw of 2 GiB", "cut"],
)
def test_cve_2023_34455_snappy_chunk_length(root: Client, records: bytes) -> None:
    """The declared length of a snappy chunk is not allocated (also CVE-2023-34453, CVE-2023-34454, CVE-2023-43642)."""
    before = rss_bytes(os.getpid())
    response = row_of(root.call("Produce", 9, produce_body("mine", wire.batch([b"v"], attributes=2, records=records))))
    assert response["ErrorCode"] != 0
    assert rss_bytes(os.getpid()) - before <= MAX_GROWTH_BYTES
    assert produced(root, "mine") == 0


def test_cve_2024_27309_removing_one_of_several_acls(root: Client, alice: Client) -> None:
    """When one ACL of a resource is deleted, its other ACLs are still enforced."""
    create(root, rule("mine"), rule("mine", 3), rule("other"), rule("other", PermissionType=2))
    assert (produced(alice, "mine"), produced(alice, "other")) == (0, TOPIC_AUTHORIZATION_FAILED)
    assert delete(root, ResourceTypeFilter=2, ResourceNameFilter="mine", Operation=4) == 1
    assert (produced(alice, "mine"), fetched(alice, "mine")) == (TOPIC_AUTHORIZATION_FAILED, 0)
    assert produced(alice, "other") == TOPIC_AUTHORIZATION_FAILED
    left = root.call("DescribeAcls", 3, EVERYTHING)["Resources"]
    assert sum(len(one["Acls"]) for one in left) == 3


def altered(client: Client, kind: int, name: str, **configs: str) -> Body:
    """Return the one result of IncrementalAlterConfigs."""
    body = set_configs(kind, name, {key.replace("__", "."): value for key, value in configs.items()})
    (found,) = client.call("IncrementalAlterConfigs", 1, body)["Responses"]
    result: Body = found
    return result


@pytest.mark.parametrize("value", ["${file:/etc/passwd:root}", "${env:HOME}", "${directory:/etc:hostname}"])
def test_cve_2024_31141_config_providers(root: Client, value: str) -> None:
    """A config value that names a config provider is not replaced by a file or an environment variable."""
    altered(root, 2, "mine", follower__replication__throttled__replicas=value)
    altered(root, 4, "", kbroker__unknown=value)
    for kind, name in ((2, "mine"), (4, "1")):
        asked: dict[str, Any] = {"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": None}
        (result,) = root.call("DescribeConfigs", 4, {"Resources": [asked]})["Results"]
        for config in result["Configs"]:
            assert "root:x" not in (config["Value"] or "")
            assert config["Value"] in (None, value) or "${" not in config["Value"]


def test_cve_2024_56128_scram_nonce(secured: SecuredBroker) -> None:
    """The nonce of the client's final SCRAM message must be that of the broker's challenge."""
    with secured.connect("SASL") as connection:
        connection.call("SaslHandshake", 1, {"Mechanism": "SCRAM-SHA-256"})
        challenge = bytes(token(connection, b"n,,n=alice,r=abc")["AuthBytes"]).decode()
        nonce = challenge.partition(",")[0].removeprefix("r=")
        assert nonce.startswith("abc")
        final = f"c=biws,r={nonce[:-1]}{'A' if nonce[-1] != 'A' else 'B'},p=AAAA"
        response = token(connection, final.encode())
        assert response["ErrorCode"] == SASL_AUTHENTICATION_FAILED
        assert is_closed(connection)


@pytest.mark.parametrize("module", ["com.sun.security.auth.module.JndiLoginModule", "LdapLoginModule"])
def test_cve_2025_27818_and_27819_login_modules(root: Client, module: str) -> None:
    """A login module in a JAAS config that is set at run time is refused."""
    value = f'{module} required user.provider.url="ldap://127.0.0.1:1/x" user_eve="x";'
    for name in ("", "1"):
        key = {"listener__name__sasl_plaintext__plain__sasl__jaas__config": value}
        assert altered(root, 4, name, **key)["ErrorCode"] in (INVALID_CONFIG, INVALID_REQUEST)
        altered(root, 4, name, sasl__jaas__config=value)
    host, port = root.socket.getpeername()[:2]
    with Client(f"{host}:{port}") as eve:
        eve.call("SaslHandshake", 1, {"Mechanism": "PLAIN"})
        assert token(eve, b"\0eve\0x")["ErrorCode"] == SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "oauthbearer", "ANONYMOUS", "EXTERNAL", "GSSAPI", ""])
def test_cve_2025_27817_2026_33557_2026_110985_oauthbearer(secured: SecuredBroker, mechanism: str) -> None:
    """The mechanism OAUTHBEARER, with its unsigned tokens and key URLs, is not supported."""
    with secured.connect("SASL") as connection:
        response = connection.call("SaslHandshake", 1, {"Mechanism": mechanism})
        assert response["ErrorCode"] == UNSUPPORTED_SASL_MECHANISM
        assert "OAUTHBEARER" not in response["Mechanisms"]
        assert is_closed(connection)


def test_cve_2026_111073_telemetry_is_decompressed_within_its_limit(root: Client) -> None:
    """PushTelemetry does not decompress more than the limit."""
    granted = root.call("GetTelemetrySubscriptions", 0, {"ClientInstanceId": uuid.UUID(int=0)})
    push = {name: granted[name] for name in ("ClientInstanceId", "SubscriptionId")}
    bomb = gzip.compress(bytes(256 << 20), 9)
    assert len(bomb) < granted["TelemetryMaxBytes"]
    before = rss_bytes(os.getpid())
    response = root.call("PushTelemetry", 0, {**push, "Terminating": False, "CompressionType": 1, "Metrics": bomb})
    assert response["ErrorCode"] == INVALID_RECORD
    assert rss_bytes(os.getpid()) - before < MAX_GROWTH_BYTES
