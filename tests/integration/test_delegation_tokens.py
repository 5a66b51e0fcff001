"""Delegation tokens: logins with a token, expiry, ACLs, kill -9, and `kbroker tokens`."""

import base64
import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnectionError
from kbroker.client.security import ClientSecurity
from kbroker.common.errors import Errors, KafkaError
from tests.support import cli, cli_output
from tests.support.broker import BrokerProcess
from tests.support.certificates import Certificates
from tests.support.client import Body, Client
from tests.support.secured import PASSWORDS, PLAIN, SecuredBroker

HANDSHAKE, API_VERSIONS, AUTHENTICATE = 17, 18, 36
CREATE_ACLS, CREATE, RENEW, EXPIRE, DESCRIBE = 30, 38, 39, 40, 41
UPDATE_FEATURES, UNREGISTER_BROKER, ADD_VOTER, REMOVE_VOTER = 57, 64, 80, 81
DELEGATION_TOKEN, USER = 6, 7  # types of resources
DESCRIBE_OPERATION, CREATE_TOKENS, DESCRIBE_TOKENS = 8, 13, 14  # operations
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SETTINGS = {"delegation.token.secret.key": "the-key", "connection.failed.authentication.delay.ms": 0}


@pytest.fixture(scope="module")
def secured(certificates: Certificates) -> Iterator[SecuredBroker]:
    with SecuredBroker(certificates, SETTINGS, VirtualClock()) as broker:
        yield broker


def logged_in(address: str, user: str = "alice") -> Client:
    client = Client(address)
    assert client.call(HANDSHAKE, 1, {"Mechanism": "PLAIN"})["ErrorCode"] == 0
    assert client.call(AUTHENTICATE, 2, {"AuthBytes": f"\0{user}\0{PASSWORDS[user]}".encode()})["ErrorCode"] == 0
    return client


def make_token(address: str, user: str = "alice", lifetime_ms: int = -1) -> Body:
    with logged_in(address, user) as client:
        token = client.call(CREATE, 3, {"Renewers": [], "MaxLifetimeMs": lifetime_ms})
    assert token["ErrorCode"] == 0
    return token


def by_token(token: Body, mechanism: str = "SCRAM-SHA-256") -> dict[str, str]:
    """Return the properties of a client that logs in with a token."""
    secret = base64.b64encode(token["Hmac"]).decode()
    line = f'{SCRAM} required username="{token["TokenId"]}" password="{secret}" tokenauth="true";'
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": line}


def cluster(address: str, token: Body, mechanism: str = "SCRAM-SHA-256") -> Cluster:
    security = ClientSecurity(by_token(token, mechanism))
    return security.open_cluster(address)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_who_logs_in_by_a_token_is_its_owner(secured: SecuredBroker, mechanism: str) -> None:
    """A client that logs in with a token is authenticated as the token's owner, and cannot manage tokens."""
    address = secured.address("SASL")
    token = make_token(address, "bob")
    seen = []
    secured.broker.intercept(lambda request: bool(seen.append(request.principal)), [API_VERSIONS])  # type: ignore[func-returns-value]
    try:
        with cluster(address, token, mechanism) as client:
            client.fetch_metadata([])
            connection = client.connection_to(None)
            for key, version, body in (
                (CREATE, 3, {"Renewers": [], "MaxLifetimeMs": -1}),
                (RENEW, 2, {"Hmac": token["Hmac"], "RenewPeriodMs": -1}),
                (EXPIRE, 2, {"Hmac": token["Hmac"], "ExpiryTimePeriodMs": -1}),
                (DESCRIBE, 3, {"Owners": None}),
            ):
                refused = connection.request(key, version, body)
                assert refused["ErrorCode"] == Errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    finally:
        secured.broker.intercept(None)
    assert set(seen) == {"User:bob"}


def test_a_session_ends_with_its_token(secured: SecuredBroker) -> None:
    """When a token expires, its connection is closed and a login with it is refused."""
    clock = secured.broker.clock
    assert isinstance(clock, VirtualClock)
    address = secured.address("SASL")
    token = make_token(address, lifetime_ms=60_000)
    with cluster(address, token) as client:
        connection = client.connection_to(None)
        clock.advance_ms(59_000)
        assert connection.request(API_VERSIONS, 0, {})["ErrorCode"] == 0
        clock.advance_ms(2_000)
        with pytest.raises(BrokerConnectionError):
            connection.request(API_VERSIONS, 0, {})
    with pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
        cluster(address, token)


def test_tokens_outlive_a_killed_broker(tmp_path: Path) -> None:
    """After kill -9, created and renewed tokens are in force, and an expired token is not."""
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    plain = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": plain,
        "delegation.token.secret.key": "the-key",
    }
    with BrokerProcess(tmp_path / "data", settings) as broker:
        made, renewed, ended = (make_token(broker.bootstrap) for _ in range(3))
        with logged_in(broker.bootstrap) as client:
            renewal = client.call(RENEW, 2, {"Hmac": renewed["Hmac"], "RenewPeriodMs": 5_000_000})
            assert client.call(EXPIRE, 2, {"Hmac": ended["Hmac"], "ExpiryTimePeriodMs": -1})["ErrorCode"] == 0
        broker.kill()
        broker.start()
        with logged_in(broker.bootstrap, "bob") as client:
            rows = client.call(DESCRIBE, 3, {"Owners": None})["Tokens"]
        assert {row["TokenId"]: row["ExpiryTimestamp"] for row in rows} == {
            made["TokenId"]: made["ExpiryTimestampMs"],
            renewed["TokenId"]: renewal["ExpiryTimestampMs"],
        }
        with cluster(broker.bootstrap, made) as client:
            client.fetch_metadata([])
        with pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
            cluster(broker.bootstrap, ended)
        assert "the-key" not in "".join(broker.output)
        assert base64.b64encode(made["Hmac"]).decode() not in "".join(broker.output)


def test_acls_of_tokens_features_brokers_and_voters(secured: SecuredBroker) -> None:
    """As in Apache Kafka 4.3.1, tokens of other owners need CREATE_TOKENS, DESCRIBE_TOKENS or DESCRIBE."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    changes = {**SETTINGS, "authorizer.class.name": authorizer, "super.users": "User:alice"}
    with SecuredBroker(secured.certificates, changes) as broker, ExitStack() as connections:
        address = broker.address("SASL")
        alice, bob = (connections.enter_context(logged_in(address, user)) for user in ("alice", "bob"))

        def create(client: Client, owner: str | None = None) -> Body:
            named = {"OwnerPrincipalType": "User", "OwnerPrincipalName": owner} if owner else {}
            return client.call(CREATE, 3, {"Renewers": [], "MaxLifetimeMs": -1, **named})

        def allow(kind: int, name: str, operation: int) -> None:
            acl = {"ResourceType": kind, "ResourceName": name, "ResourcePatternType": 3, "Principal": "User:bob"}
            body = {"Creations": [{**acl, "Host": "*", "Operation": operation, "PermissionType": 3}]}
            assert alice.call(CREATE_ACLS, 3, body)["Results"][0]["ErrorCode"] == 0

        def seen(client: Client, *owners: str) -> list[str]:
            named = [{"PrincipalType": "User", "PrincipalName": owner} for owner in owners]
            response = client.call(DESCRIBE, 3, {"Owners": named or None})
            return sorted(row["PrincipalName"] for row in response["Tokens"])

        assert [create(bob, owner)["ErrorCode"] for owner in (None, "bob", "alice")] == [0, 0, 65]
        of_alice = create(alice)
        assert create(alice, "carol")["ErrorCode"] == 0
        assert seen(alice) == ["alice", "bob", "bob", "carol"]
        assert (seen(bob), seen(bob, "alice")) == (["bob", "bob"], [])
        allow(DELEGATION_TOKEN, of_alice["TokenId"], DESCRIBE_OPERATION)
        assert seen(bob, "alice", "carol") == ["alice"]
        allow(USER, "User:carol", DESCRIBE_TOKENS)
        assert seen(bob) == ["alice", "bob", "bob", "carol"]
        allow(USER, "User:alice", CREATE_TOKENS)
        assert [create(bob, owner)["ErrorCode"] for owner in ("alice", "carol")] == [0, 65]
        renewal = {"Hmac": of_alice["Hmac"], "RenewPeriodMs": -1}
        assert [client.call(RENEW, 2, renewal)["ErrorCode"] for client in (bob, alice)] == [63, 0]

        voter = {"ClusterId": None, "VoterId": 2, "VoterDirectoryId": uuid.UUID(int=5)}
        endpoint = {"Name": "CONTROLLER", "Host": "127.0.0.1", "Port": 1}
        for key, version, body, code in (
            (UPDATE_FEATURES, 2, {"FeatureUpdates": []}, 0),
            (UNREGISTER_BROKER, 0, {"BrokerId": 7}, Errors.BROKER_ID_NOT_REGISTERED),
            (ADD_VOTER, 1, {**voter, "TimeoutMs": 1000, "Listeners": [endpoint]}, Errors.UNSUPPORTED_VERSION),
            (REMOVE_VOTER, 0, voter, Errors.UNSUPPORTED_VERSION),
        ):
            codes = [client.call(key, version, body)["ErrorCode"] for client in (bob, alice)]
            assert codes == [Errors.CLUSTER_AUTHORIZATION_FAILED, code]


def test_a_name_with_nul_is_no_other_user(secured: SecuredBroker) -> None:
    """A token whose owner's name has a NUL cannot log in, as the session's principal would end before the NUL."""
    address = secured.address("SASL")
    with logged_in(address, "bob") as client:
        body = {"OwnerPrincipalType": "User", "OwnerPrincipalName": "alice\0x", "Renewers": [], "MaxLifetimeMs": -1}
        token = client.call(CREATE, 3, body)
    assert token["ErrorCode"] == 0
    with pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
        cluster(address, token)


def test_the_commands(secured: SecuredBroker, tmp_path: Path) -> None:
    """`kbroker tokens` creates, lists, renews and expires a token, named by its id or its HMAC."""
    clock = secured.broker.clock
    assert isinstance(clock, VirtualClock)
    address = secured.address("SASL")
    config = tmp_path / "client.properties"
    plain = PLAIN.format(f'username="alice" password="{PASSWORDS["alice"]}"')
    config.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={plain}\n")
    env = {"KBROKER_BOOTSTRAP": address, "KBROKER_COMMAND_CONFIG": str(config)}

    def done(*args: str) -> str:
        text = cli.printed(None, "tokens", *args, env=env)
        if "--json" in args:
            cli_output.check(f"tokens {args[0]}", text)
        return text

    made = json.loads(done("create", "--renewer", "User:bob", "--max-lifetime", "2h", "--json"))
    assert (made["owner"], made["requester"], made["renewers"]) == ("User:alice", "User:alice", ["User:bob"])
    assert made["max_time_ms"] - made["issue_time_ms"] == 7_200_000
    token = {"TokenId": made["token"], "Hmac": base64.b64decode(made["hmac"])}
    with cluster(address, token) as client:
        client.fetch_metadata([])
    listed = {key: value for key, value in made.items() if key != "hmac"}
    assert listed in json.loads(done("list", "--json"))
    assert made in json.loads(done("list", "--hmac", "--owner", "User:alice", "--json"))
    assert json.loads(done("list", "--owner", "User:carol", "--json")) == []
    assert made["hmac"] in done("list", "--hmac")
    assert made["hmac"] not in done("list")
    clock.advance_ms(1000)
    now_ms = clock.wall_ms()
    assert json.loads(done("renew", made["token"], "--period", "90s", "--json"))["expiry_time_ms"] == now_ms + 90_000
    assert (
        json.loads(done("renew", "--hmac", made["hmac"], "--period", "80s", "--json"))["expiry_time_ms"]
        == now_ms + 80_000
    )
    assert done("expire", made["token"], "--after", "1min").startswith(f"{made['token']} expires ")
    assert done("expire", made["token"]) == f"expired {made['token']}\n"
    refused = cli.run(None, "tokens", "renew", made["token"], env=env)
    assert cli.refusal(refused).startswith("DELEGATION_TOKEN_NOT_FOUND: expected the id of a delegation token that")
    text = done("create")
    assert text.startswith("created token ")
    assert "\nhmac " in text
    for words, message in (
        (["renew"], "expected either TOKEN or --hmac, got neither"),
        (["renew", "--hmac", "?"], "expected an HMAC in base64, got '?'"),
        (["create", "--renewer", "bob"], "expected User:NAME, got 'bob'"),
    ):
        assert message in cli.refusal(cli.run(None, "tokens", *words, env=env), 2)
    plaintext = cli.run(None, "tokens", "list", env={"KBROKER_BOOTSTRAP": secured.address("PLAINTEXT")})
    assert cli.refusal(plaintext).startswith("DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: ")
