"""Delegation tokens: owners, renewers, lifetimes, authentication, and restarts of the broker."""

import base64
import logging
import uuid
from pathlib import Path
from typing import Any, cast

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.removed_settings import suggest_replacement
from kbroker.common.errors import Errors
from kbroker.common.feature_versions import METADATA_VERSION
from kbroker.common.security import scram
from kbroker.common.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from kbroker.common.security.delegation_token import DelegationToken, Principal
from kbroker.listeners.sasl_authenticator import SaslListener
from kbroker.member.follower_log import FollowerLog
from kbroker.member.remote_metadata import RemoteMetadata
from kbroker.metadata.controller import Controller
from kbroker.metadata.features import FinalizedFeatures
from kbroker.metadata.image.delta import image_of
from kbroker.metadata.image.record_forms import token_body
from kbroker.metadata.log.metadata_log import FOLDER_NAME
from kbroker.metadata.records.metadata_record import metadata_record
from kbroker.network.transport.authentication import Outcome, Step
from kbroker.protocol import codec
from kbroker.security.authorizer.auth_helper import AuthHelper
from kbroker.security.authorizer.authorizer import Authorizer
from kbroker.security.delegation_tokens import DelegationTokens
from kbroker.security.mechanisms import SaslError, ScramMechanism
from tests.support.metadata import LoggedController, MemoryController, change, following
from tests.support.server import Bench, make_bench

NOW_MS, DAY_MS = 1_700_000_000_000, 86_400_000
ALICE, BOB, CAROL = "User:alice", "User:bob", "User:carol"
LISTENERS = "PLAINTEXT://h:1,TLS://h:2,SASL://h:3,BOTH://h:4"
PROTOCOLS = "PLAINTEXT:PLAINTEXT,TLS:SSL,SASL:SASL_PLAINTEXT,BOTH:SASL_SSL"
NOT_ALLOWED = Errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


class Tokens:
    """Client of a SASL listener that sends the four requests for tokens."""

    def __init__(self, bench: Bench, clock: VirtualClock) -> None:
        self.bench = bench
        self.clock = clock
        self.made = made_tokens(bench.ctx.controller, clock)
        bench.ctx.delegation_tokens = self.made

    def ask(self, name: str, version: int, body: dict[str, Any], principal: str = ALICE, **facts: Any) -> Any:
        return self.bench.ask(name, version, body, **{"principal": principal, "listener": "SASL", **facts})

    def create(self, principal: str = ALICE, version: int = 3, lifetime_ms: int = -1, **body: Any) -> dict[str, Any]:
        renewers = [{"PrincipalType": kind, "PrincipalName": name} for kind, name in body.pop("renewers", [])]
        asked = {"Renewers": renewers, "MaxLifetimeMs": lifetime_ms, **body}
        response: dict[str, Any] = self.ask("CreateDelegationToken", version, asked, principal)
        return response

    def renew(self, secret: bytes, period_ms: int = -1, principal: str = ALICE) -> tuple[int, int]:
        response = self.ask("RenewDelegationToken", 2, {"Hmac": secret, "RenewPeriodMs": period_ms}, principal)
        return response["ErrorCode"], response["ExpiryTimestampMs"]

    def expire(self, secret: bytes, period_ms: int = -1, principal: str = ALICE) -> tuple[int, int]:
        response = self.ask("ExpireDelegationToken", 2, {"Hmac": secret, "ExpiryTimePeriodMs": period_ms}, principal)
        return response["ErrorCode"], response["ExpiryTimestampMs"]

    def describe(self, *owners: str, everything: bool = False, principal: str = ALICE) -> list[str]:
        named = [dict(zip(("PrincipalType", "PrincipalName"), owner.split(":"), strict=True)) for owner in owners]
        response = self.ask("DescribeDelegationToken", 3, {"Owners": None if everything else named}, principal)
        assert response["ErrorCode"] == 0
        return [row["TokenId"] for row in response["Tokens"]]


def made_tokens(controller: Controller, clock: VirtualClock, key: str = "the-key") -> DelegationTokens:
    tokens = DelegationTokens(controller, clock, key, max_lifetime_ms=7 * DAY_MS, expiry_time_ms=DAY_MS)
    return following(controller, tokens)


@pytest.fixture
def tokens() -> Tokens:
    clock = VirtualClock(NOW_MS)
    bench = make_bench(listeners=LISTENERS, listener_security_protocol_map=PROTOCOLS)
    return Tokens(bench, clock)


def now(tokens: Tokens) -> int:
    return tokens.clock.wall_ms()


def test_the_secret_is_kafkas() -> None:
    """The HMAC equals Kafka 4.3.1's HMAC for the same id and key."""
    secret = made_tokens(MemoryController(), VirtualClock(NOW_MS)).hmac_of("iUP3X3LIQnuW_GdDknKJoQ")
    assert base64.b64encode(secret) == (
        b"bYl3+1ILxXL6Vr57P4xoG1zl6vlCDNVgydfcHUva+tX6VJ93V2sauZOfl17QovFpk4cajGMv0jbd4EGBojW91Q=="
    )


def test_a_shorter_life_and_another_owner(tokens: Tokens) -> None:
    """A token expires after the requested lifetime; an owner other than the requester keeps its type (KIP-373)."""
    response = tokens.create(lifetime_ms=5000, OwnerPrincipalType="Strange", OwnerPrincipalName="bob")
    assert response["ExpiryTimestampMs"] == response["MaxTimestampMs"] == now(tokens) + 5000
    facts = [response[name] for name in ("PrincipalType", "PrincipalName", "TokenRequesterPrincipalName")]
    assert facts == ["Strange", "bob", "alice"]
    assert tokens.made.hmac_of(response["TokenId"]) == response["Hmac"]
    untyped = tokens.create(OwnerPrincipalType=None, OwnerPrincipalName="bob")
    assert untyped["ErrorCode"] == Errors.UNKNOWN_SERVER_ERROR


def test_renewing(tokens: Tokens) -> None:
    """Owner and renewers renew a token for at most the configured period and never beyond its maximum lifetime."""
    secret = tokens.create(renewers=[("User", "bob")])["Hmac"]
    tokens.clock.advance_ms(1000)
    assert tokens.renew(secret, 5000) == (0, now(tokens) + 5000)
    assert tokens.renew(secret, 0, BOB) == (0, now(tokens) + DAY_MS)
    assert tokens.renew(secret, 2**63 - 1) == (0, now(tokens) + DAY_MS)
    assert tokens.renew(secret, -1, CAROL) == (Errors.DELEGATION_TOKEN_OWNER_MISMATCH, 0)
    assert tokens.renew(b"") == tokens.renew(secret[:-1]) == (Errors.DELEGATION_TOKEN_NOT_FOUND, 0)
    for _ in range(6):
        tokens.clock.advance_ms(DAY_MS)
        assert tokens.renew(secret)[0] == 0
    assert tokens.renew(secret) == (0, NOW_MS + 7 * DAY_MS)
    tokens.clock.advance_ms(DAY_MS - 1000)
    assert tokens.renew(secret) == (0, NOW_MS + 7 * DAY_MS)  # the last millisecond before expiry
    tokens.clock.advance_ms(1)
    assert tokens.renew(secret) == (Errors.DELEGATION_TOKEN_EXPIRED, 0)


def test_ending(tokens: Tokens) -> None:
    """A token with an earlier expiry can still be renewed; a removed token is not found."""
    secret = tokens.create(renewers=[("User", "bob")])["Hmac"]
    assert tokens.expire(secret, 10, CAROL) == (Errors.DELEGATION_TOKEN_OWNER_MISMATCH, 0)
    assert tokens.expire(secret, 10, BOB) == (0, now(tokens) + 10)
    assert tokens.renew(secret)[0] == 0
    assert tokens.expire(secret, 2**63 - 1) == (0, now(tokens) + 7 * DAY_MS)
    assert tokens.expire(secret, 0) == (0, now(tokens))
    tokens.clock.advance_ms(1)
    assert tokens.expire(secret, 10) == (Errors.DELEGATION_TOKEN_EXPIRED, 0)
    assert tokens.expire(secret) == (0, now(tokens))
    assert tokens.expire(secret) == (Errors.DELEGATION_TOKEN_NOT_FOUND, 0)
    assert tokens.expire(b"x" * 64, principal=BOB) == (Errors.DELEGATION_TOKEN_NOT_FOUND, 0)


def test_describing(tokens: Tokens) -> None:
    """Tokens are listed by owner, requester or renewer; an empty list selects no token, null all."""
    own = tokens.create(renewers=[("User", "carol")])["TokenId"]
    for_bob = tokens.create(OwnerPrincipalType="User", OwnerPrincipalName="bob")["TokenId"]
    assert tokens.describe(everything=True) == [own, for_bob]
    assert tokens.describe() == []
    assert tokens.describe(ALICE) == [own, for_bob]
    assert tokens.describe(BOB) == [for_bob]
    assert tokens.describe(CAROL, "User:dave") == [own]
    assert tokens.describe("Group:alice") == []
    (row, _) = tokens.ask("DescribeDelegationToken", 2, {"Owners": None})["Tokens"]
    assert row["Renewers"] == [{"PrincipalType": "User", "PrincipalName": "carol"}]
    assert row["TokenRequesterPrincipalName"] == ""


REQUESTS = [
    ("CreateDelegationToken", 3, {"Renewers": [], "MaxLifetimeMs": -1}),
    ("RenewDelegationToken", 2, {"Hmac": b"x", "RenewPeriodMs": 1}),
    ("ExpireDelegationToken", 2, {"Hmac": b"x", "ExpiryTimePeriodMs": 1}),
    ("DescribeDelegationToken", 3, {"Owners": None}),
]


@pytest.mark.parametrize(("name", "version", "body"), REQUESTS)
def test_who_may_ask(tokens: Tokens, name: str, version: int, body: dict[str, Any]) -> None:
    """Only a client that has authenticated, and not by a token, may use the requests."""

    def code(**facts: Any) -> int:
        return int(tokens.ask(name, version, body, **facts)["ErrorCode"])

    assert code(listener="PLAINTEXT") == NOT_ALLOWED
    assert code(listener="TLS", principal="User:ANONYMOUS") == NOT_ALLOWED
    assert code(listener="TLS", principal="User:CN=client") in (0, Errors.DELEGATION_TOKEN_NOT_FOUND)
    for listener in ("SASL", "BOTH"):
        assert code(listener=listener) in (0, Errors.DELEGATION_TOKEN_NOT_FOUND)
        assert code(listener=listener, is_token_authenticated=True) == NOT_ALLOWED
        assert code(listener=listener, principal="User:ANONYMOUS") == NOT_ALLOWED  # of the console
    assert code(listener="elsewhere") == NOT_ALLOWED


@pytest.mark.parametrize(("name", "version", "body"), REQUESTS)
def test_without_a_key_there_are_no_tokens(tokens: Tokens, name: str, version: int, body: dict[str, Any]) -> None:
    """A client that may use the requests gets DELEGATION_TOKEN_AUTH_DISABLED."""
    tokens.bench.ctx.delegation_tokens = None
    assert tokens.ask(name, version, body)["ErrorCode"] == Errors.DELEGATION_TOKEN_AUTH_DISABLED
    assert tokens.ask(name, version, body, listener="PLAINTEXT")["ErrorCode"] == NOT_ALLOWED


def log_in(tokens: DelegationTokens, token_id: str, password: str, mechanism: str = "SCRAM-SHA-256") -> ScramMechanism:
    """Authenticate as clients do. Raises: SaslError."""
    how = scram.MECHANISMS[mechanism]
    server = ScramMechanism(how, lambda *_: None, find_token=tokens.find)
    client = scram.ScramClient(how, token_id, password, is_token=True)
    client.check(server.evaluate(client.final(server.evaluate(client.first()))))
    return server


@pytest.mark.parametrize("mechanism", scram.MECHANISMS)
def test_logging_in(tokens: Tokens, mechanism: str) -> None:
    """A client authenticates with the token's id and secret as the owner until the token expires."""
    made = tokens.made
    token = tokens.create(OwnerPrincipalType="User", OwnerPrincipalName="bob")
    password = base64.b64encode(token["Hmac"]).decode()
    for _ in range(2):
        server = log_in(made, token["TokenId"], password, mechanism)
        assert (server.user, server.token_expiry_ms) == ("bob", token["ExpiryTimestampMs"])
    with pytest.raises(SaslError, match="Invalid client credentials"):
        log_in(made, token["TokenId"], "wrong", mechanism)
    with pytest.raises(SaslError, match="Invalid tokenId : no-token"):
        log_in(made, "no-token", password, mechanism)
    plain = ScramMechanism(scram.MECHANISMS[mechanism], lambda *_: None, find_token=made.find)
    with pytest.raises(SaslError, match="Invalid user credentials"):  # a token id is not a user
        plain.evaluate(scram.ScramClient(scram.MECHANISMS[mechanism], token["TokenId"], password).first())
    tokens.clock.advance_ms(DAY_MS + 1)
    with pytest.raises(SaslError, match="Invalid tokenId"):
        log_in(made, token["TokenId"], password, mechanism)


class Connection:
    """Client side of a connection to a SASL listener with limited sessions."""

    def __init__(self, made: DelegationTokens, clock: VirtualClock, max_reauth_ms: int) -> None:
        alice = scram.Credential.from_password(scram.SCRAM_SHA_256, "alice-secret", b"salt", 4096)
        listener = SaslListener(
            {"SCRAM-SHA-256": lambda: ScramMechanism(scram.SCRAM_SHA_256, lambda *_: alice, find_token=made.find)},
            api_versions=dict,
            features=lambda: FinalizedFeatures({}, 0),
            error_body=lambda *_: None,
            clock=clock,
            max_reauth_ms={"SCRAM-SHA-256": max_reauth_ms},
        )
        self.authenticator = listener.begin("127.0.0.1", 1)

    def _send(self, key: int, version: int, body: dict[str, Any]) -> tuple[Step, dict[str, Any]]:
        step = self.authenticator.receive(codec.encode_request_frame(key, version, 7, "me", body)[4:])
        assert step.response is not None
        return step, codec.decode_response_frame(key, version, bytearray(step.response))[1]

    def log_in(self, user: str, password: str, *, is_token: bool) -> Step:
        assert self._send(17, 1, {"Mechanism": "SCRAM-SHA-256"})[1]["ErrorCode"] == 0
        client = scram.ScramClient(scram.SCRAM_SHA_256, user, password, is_token=is_token)
        challenge = self._send(36, 2, {"AuthBytes": client.first()})[1]["AuthBytes"]
        step, response = self._send(36, 2, {"AuthBytes": client.final(bytes(challenge))})
        assert response["SessionLifetimeMs"] == step.session_lifetime_ms
        return step


@pytest.mark.parametrize(("max_reauth_ms", "lifetime_ms"), [(0, 60_000), (70_000, 60_000), (5_000, 5_000)])
def test_sessions_of_tokens(tokens: Tokens, max_reauth_ms: int, lifetime_ms: int) -> None:
    """A session ends with its token or at the listener's limit; the client may reauthenticate, even with a password."""
    made = tokens.made
    token = tokens.create(lifetime_ms=60_000)
    password = base64.b64encode(token["Hmac"]).decode()
    connection = Connection(made, tokens.clock, max_reauth_ms)
    step = connection.log_in(token["TokenId"], password, is_token=True)
    assert (step.outcome, step.principal, step.is_token_authenticated) == (Outcome.COMPLETE, ALICE, True)
    assert step.session_lifetime_ms == lifetime_ms
    tokens.clock.advance_ms(2_000)
    assert connection.authenticator.begin_again()
    step = connection.log_in(token["TokenId"], password, is_token=True)
    assert (step.is_token_authenticated, step.session_lifetime_ms) == (True, min(58_000, lifetime_ms))
    tokens.clock.advance_ms(2_000)
    assert connection.authenticator.begin_again()
    step = connection.log_in("alice", "alice-secret", is_token=False)
    assert (step.principal, step.is_token_authenticated, step.session_lifetime_ms) == (ALICE, False, max_reauth_ms)


def test_expired_ones_are_swept(tokens: Tokens, caplog: pytest.LogCaptureFixture) -> None:
    """Expired tokens are removed; the log names the token and its owner but no secret."""
    made = tokens.made
    short, long = tokens.create(lifetime_ms=10), tokens.create()
    log_in(made, short["TokenId"], base64.b64encode(short["Hmac"]).decode())
    tokens.clock.advance_ms(11)
    assert tokens.describe(everything=True) == [short["TokenId"], long["TokenId"]]
    with caplog.at_level(logging.DEBUG):
        made.sweep()
        made.sweep()
    assert tokens.describe(everything=True) == [long["TokenId"]]
    assert list(tokens.bench.ctx.image.delegation_tokens) == [long["TokenId"]]
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert line == f"Delegation token expired for token: {short['TokenId']} for owner: User:alice"
    for secret in (short["Hmac"].hex(), base64.b64encode(short["Hmac"]).decode(), "the-key"):
        assert secret not in caplog.text


def test_tokens_survive_a_restart_with_the_same_key(tmp_path: Path) -> None:
    """Acknowledged tokens are restored; another key gives other secrets. No secret is in the log."""
    clock = VirtualClock(NOW_MS)
    controller = LoggedController(tmp_path)
    tokens = made_tokens(controller, clock)
    owner = Principal("User", "al\nice")
    first = tokens.create(owner, owner, (Principal("User", "bo:b"), owner), 0)
    second = tokens.create(Principal("a:b", "c"), owner, (), 0)
    expiry_ms = tokens.renew(tokens.hmac_of(first.token_id), owner, 77)
    secret = tokens.hmac_of(first.token_id)
    controller.close()
    data = b"".join(path.read_bytes() for path in (tmp_path / FOLDER_NAME).iterdir())
    assert first.token_id.encode() in data
    assert secret not in data
    assert b"the-key" not in data
    controller = LoggedController(tmp_path)
    again = made_tokens(controller, clock)
    # the log has principals as text: a type ends at its first colon, as in Kafka
    assert again.all() == [first._replace(expiry_ms=expiry_ms), second._replace(owner=Principal("a", "b:c"))]
    assert again.hmac_of(first.token_id) == secret
    assert again.renew(secret, owner, 99) == NOW_MS + 99
    other = made_tokens(controller, clock, "another-key")
    with pytest.raises(Exception, match="DELEGATION_TOKEN_NOT_FOUND"):
        other.renew(secret, owner, 1)
    controller.close()


def test_a_disk_that_refuses(tokens: Tokens) -> None:
    """A change of a token that cannot be stored is not acknowledged and has no effect."""
    secret = tokens.create()["Hmac"]
    before = list(tokens.bench.ctx.image.delegation_tokens.values())
    tokens.bench.storage.is_full = True
    assert tokens.create()["ErrorCode"] == Errors.KAFKA_STORAGE_ERROR
    assert tokens.renew(secret, 5) == (Errors.KAFKA_STORAGE_ERROR, 0)
    assert tokens.expire(secret) == (Errors.KAFKA_STORAGE_ERROR, 0)
    tokens.clock.advance_ms(8 * DAY_MS)
    made = tokens.made
    made.sweep()
    assert made.all() == before
    tokens.bench.storage.is_full = False
    made.sweep()
    assert made.all() == []


def test_other_controllers_remove_expired_tokens(caplog: pytest.LogCaptureFixture) -> None:
    """A member of a cluster leaves expired tokens to the controllers, and logs no failure of that."""
    user, clock = Principal("User", "alice"), VirtualClock(NOW_MS)
    token = DelegationToken("id", user, user, (), NOW_MS - 2, NOW_MS - 1, NOW_MS - 1)
    metadata = RemoteMetadata(9, "cluster", uuid.UUID(int=5), cast(FollowerLog, None))
    metadata.reset_image(image_of([metadata_record("DelegationTokenRecord", token_body(token))]))
    made = made_tokens(metadata, clock)
    made.sweep()
    assert (made.all(), caplog.text) == ([token], "")


def test_a_token_as_a_value() -> None:
    """A token has principals, renewers, and an expiry time in milliseconds."""
    alice, bob, carol = (Principal.parse(text) for text in (ALICE, BOB, CAROL))
    token = DelegationToken("id", alice, bob, (carol,), 1, 30, 20)
    assert token.principals == {alice, bob, carol}
    assert [token.may_be_renewed_by(who) for who in (alice, bob, carol)] == [True, False, True]
    assert [token.is_expired(ms) for ms in (20, 21, 31)] == [False, True, True]
    assert Principal.parse("User:a:b") == Principal("User", "a:b")


def test_the_older_name_of_the_key_is_named() -> None:
    """The error for the former name, which Apache Kafka 4 ignores, names the current one and not the secret value."""
    text = suggest_replacement("delegation.token.master.key", "the-key")
    assert text is not None
    assert "delegation.token.secret.key" in text
    assert "the-key" not in text


# ---- with an authorizer


def test_who_may_make_and_see_tokens_of_others(tokens: Tokens) -> None:
    """Tokens of others require CreateTokens and DescribeTokens for the owner, or Describe for the token."""
    authorizer = following(tokens.bench.ctx.controller, Authorizer(tokens.bench.ctx.controller))
    tokens.bench.ctx.auth = AuthHelper(authorizer)
    of_bob: dict[str, Any] = {"OwnerPrincipalType": "User", "OwnerPrincipalName": "bob"}
    assert tokens.create()["ErrorCode"] == 0
    assert tokens.create(**of_bob)["ErrorCode"] == Errors.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    create = Acl(ResourceType.USER, BOB, PatternType.LITERAL, ALICE, "*", Operation.CREATE_TOKENS, Permission.ALLOW)
    authorizer.create([create])
    made = tokens.create(**of_bob)
    assert made["ErrorCode"] == 0
    others = made["TokenId"]
    assert others in tokens.describe(everything=True, principal=BOB)
    assert tokens.describe(everything=True, principal=CAROL) == []
    authorizer.create([create._replace(principal=CAROL, operation=Operation.DESCRIBE_TOKENS)])
    assert tokens.describe(everything=True, principal=CAROL) == [others]
    authorizer.delete([AclFilter(principal=CAROL)])
    see = create._replace(resource_type=ResourceType.DELEGATION_TOKEN, resource_name=others, principal=CAROL)
    authorizer.create([see._replace(operation=Operation.DESCRIBE)])
    assert tokens.describe(everything=True, principal=CAROL) == [others]


def test_only_a_users_token_logs_a_client_in(tokens: Tokens) -> None:
    """Only a token with an owner of type User authenticates; rules for other types give no access to a user."""
    made = tokens.made
    authorizer = following(tokens.bench.ctx.controller, Authorizer(tokens.bench.ctx.controller))
    tokens.bench.ctx.auth = AuthHelper(authorizer)
    kind_of, may = PatternType.PREFIXED, Permission.ALLOW
    authorizer.create([Acl(ResourceType.USER, "User:app-", kind_of, ALICE, "*", Operation.CREATE_TOKENS, may)])
    refused = tokens.create(OwnerPrincipalType="User", OwnerPrincipalName="root")
    assert refused["ErrorCode"] == Errors.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    for kind, name, user in (("User:app-1", "root", "app-1:root"), ("User", "app-1", "app-1"), ("Team", "root", None)):
        authorizer.create([Acl(ResourceType.USER, "Team:", kind_of, ALICE, "*", Operation.CREATE_TOKENS, may)])
        token = tokens.create(OwnerPrincipalType=kind, OwnerPrincipalName=name)
        assert token["ErrorCode"] == 0  # as in Kafka
        password = base64.b64encode(token["Hmac"]).decode()
        if user is not None:
            assert log_in(made, token["TokenId"], password).user == user
        else:
            with pytest.raises(SaslError, match="Invalid tokenId"):
                log_in(made, token["TokenId"], password)


def test_an_old_metadata_version_is_refused(tokens: Tokens) -> None:
    """A snapshot at that level could not contain the records; the error code is Kafka's."""
    controller = tokens.bench.ctx.controller
    change(controller, metadata_record("FeatureLevelRecord", {"Name": METADATA_VERSION, "FeatureLevel": 13}))
    code = Errors.UNSUPPORTED_VERSION
    assert tokens.create()["ErrorCode"] == code
    assert tokens.renew(b"unknown")[0] == tokens.expire(b"unknown")[0] == code
    assert controller.image.delegation_tokens == {}
    change(controller, metadata_record("FeatureLevelRecord", {"Name": METADATA_VERSION, "FeatureLevel": 14}))
    assert tokens.create()["ErrorCode"] == 0
