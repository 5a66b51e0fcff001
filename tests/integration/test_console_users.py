"""Users of the console: SCRAM users with their ACLs, the holder of the token, and the log of changes."""

import logging
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from kbroker.broker import Broker
from kbroker.client.acls import Acls
from kbroker.client.users import Users
from kbroker.common.errors import Errors
from kbroker.common.quotas import QuotaEntity
from kbroker.common.security.acls import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from kbroker.console.app import Console
from kbroker.observe.wrong_tokens import GUESSES
from tests.support.console import SECURED, TOKEN, apply, ask, cluster_of, pages_of, post, secret_of, served, sign_in
from tests.support.errors import error_of

AWAY = "10.1.2.3"
CHANGE = {"user": "bob", "key": "producer_byte_rate", "value": "1MB", "effect": "enforce"}


def allow(user: str, operation: Operation, kind: ResourceType, name: str, host: str = "*") -> Acl:
    return Acl(kind, name, PatternType.LITERAL, f"User:{user}", host, operation, Permission.ALLOW)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with served(SECURED) as made:
        with cluster_of(made) as root:
            users = Users(root)
            users.set("alice", "SCRAM-SHA-256", "alice's password", 4096)
            users.set("bob", "SCRAM-SHA-512", "bob, his=password", 4096)
            Acls(root).add(
                [
                    allow("alice", Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME),
                    allow("bob", Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME, AWAY),
                    allow("bob", Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME),
                    allow("bob", Operation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME),
                ]
            )
        yield made


def test_a_connection_of_this_process_is_its_user(broker: Broker) -> None:
    """Connections within the process are authorized by their principal and host."""
    with cluster_of(broker, "User:bob", AWAY) as away, cluster_of(broker, "User:bob") as here:
        assert error_of(Acls(here).list) is Errors.CLUSTER_AUTHORIZATION_FAILED
        assert Acls(away).list() != []
    assert broker.parts.server.connection_quotas.count() == 0, "not a client's connection"


@pytest.mark.parametrize("principal", ["alice", "User:a\0b", "User:" + "x" * 70_000])
def test_a_principal_that_no_session_can_have(broker: Broker, principal: str) -> None:
    with pytest.raises(ValueError, match="expected a principal"):
        broker.parts.server.connect(principal, "127.0.0.1")


def test_no_connection_outlives_the_server() -> None:
    with served({**SECURED, "authorizer.class.name": ""}) as made:
        stream = made.parts.server.connect("User:alice", "127.0.0.1")
        server = made.parts.server
    assert stream.recv(1) == b""
    stream.close()
    with pytest.raises(OSError, match="does not serve"):
        server.connect("User:alice", "127.0.0.1")


# ---------------------------------------------------------------- signing in


def test_a_user_signs_in(pages: Console) -> None:
    assert ask(pages, "quotas", AWAY).status == 303
    page = ask(pages, "sign-in", AWAY).body.decode()
    assert 'name="user"' in page
    assert 'name="token"' in page
    cookie = sign_in(pages, "bob", "bob, his=password", address=AWAY)
    shown = ask(pages, "quotas", AWAY, cookie=cookie)
    assert (shown.status, "<bdi>bob</bdi>" in shown.body.decode()) == (200, True)
    secret = secret_of(shown.body.decode())
    assert post(pages, "sign-out", {"form_secret": secret}, AWAY, cookie=cookie).status == 303
    assert ask(pages, "quotas", AWAY, cookie=cookie).status == 303


@pytest.mark.parametrize(
    ("user", "password"),
    [("alice", "bob, his=password"), ("alice", ""), ("unknown", "x"), ("\0", "x"), ("a" * 2000, "x")],
)  # fmt: skip
def test_a_wrong_password(pages: Console, user: str, password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known and unknown users receive the same error; after five, the address must wait and no password is checked."""
    for _ in range(GUESSES):
        refused = post(pages, "sign-in", {"user": user, "password": password}, AWAY)
        assert (refused.status, "User or password is wrong." in refused.body.decode()) == (403, True)
    right = {"user": "alice", "password": "alice's password"}
    with monkeypatch.context() as patch:
        patch.setattr(pages, "_passwords", SimpleNamespace(sign_in=pytest.fail))
        waits = post(pages, "sign-in", right, AWAY)
    assert (waits.status, "too many wrong passwords" in waits.body.decode().lower()) == (429, True)
    assert post(pages, "sign-in", {"token": TOKEN}, AWAY).status == 429
    assert post(pages, "sign-in", right, "10.9.9.9").status == 303


def test_a_session_ends_with_the_password(broker: Broker, pages: Console) -> None:
    with cluster_of(broker) as root:
        Users(root).set("carol", "SCRAM-SHA-256", "one", 4096)
        cookie = sign_in(pages, "carol", "one", address=AWAY)
        assert ask(pages, "alive", AWAY, cookie=cookie).status == 200
        Users(root).set("carol", "SCRAM-SHA-256", "two", 4096)
        assert ask(pages, "alive", AWAY, cookie=cookie).status == 303
        cookie = sign_in(pages, "carol", "two", address=AWAY)
        Users(root).remove("carol", "SCRAM-SHA-256")
        assert ask(pages, "alive", AWAY, cookie=cookie).status == 303


def test_there_are_no_users_without_a_listener_for_them() -> None:
    with served({**SECURED, "listeners": "PLAINTEXT://127.0.0.1:0"}) as made, pages_of(made, TOKEN) as pages:
        assert 'name="user"' not in ask(pages, "sign-in", AWAY).body.decode()
        assert post(pages, "sign-in", {"user": "alice", "password": "x"}, AWAY).status == 403


# ---------------------------------------------------------------- permissions


def test_a_page_names_the_acl_that_is_missing(pages: Console) -> None:
    alice = sign_in(pages, "alice", "alice's password", address=AWAY)
    for page in ("", "throttles", "xray", "rates"):
        denied = ask(pages, page, AWAY, cookie=alice, kb_viewer=page)
        assert denied.status == 403, page
        assert "No ACL allows User:alice the operation Describe on the cluster." in denied.body.decode()
    assert pages._viewers._seen == {}, "refused pages do not slow the others"
    assert ask(pages, "quotas", AWAY, cookie=alice).status == 200
    bob = sign_in(pages, "bob", "bob, his=password", address=AWAY)
    assert ask(pages, "xray", AWAY, cookie=bob).status == 200
    here = sign_in(pages, "bob", "bob, his=password")
    assert ask(pages, "xray", cookie=here).status == 403, "the rule is for another address"


def test_a_change_is_made_by_the_user_and_logged(
    broker: Broker, pages: Console, caplog: pytest.LogCaptureFixture
) -> None:
    def quotas() -> dict[str, float]:
        return dict(broker.context.quota_entities.of(QuotaEntity.of({"user": "bob"})))

    alice = sign_in(pages, "alice", "alice's password", address=AWAY)
    fields = {**CHANGE, "form_secret": secret_of(ask(pages, "quotas", AWAY, cookie=alice).body.decode())}
    denied = post(pages, "quota/preview", fields, AWAY, cookie=alice)
    assert denied.status == 403
    assert "No ACL allows User:alice the operation AlterConfigs on the cluster." in denied.body.decode()
    bob = sign_in(pages, "bob", "bob, his=password", address=AWAY)
    fields["form_secret"] = secret_of(ask(pages, "quotas", AWAY, cookie=bob).body.decode())
    checked = post(pages, "quota/check", fields, AWAY, cookie=bob).body.decode()
    assert "producer_byte_rate" in checked
    assert "<html" not in checked
    assert quotas() == {}
    with caplog.at_level(logging.INFO, "kbroker.console.changes"):
        assert apply(pages, "quota", fields, address=AWAY, cookie=bob).status == 303
    assert quotas() == {"producer_byte_rate": 1e6}
    (line,) = [one.getMessage() for one in caplog.records if "quotas" in one.getMessage()]
    assert line == (
        "console: User:bob from 10.1.2.3: Change quotas of user bob (producer_byte_rate: none -> 1000000 B/s)"
    )


def test_the_token_may_do_everything(pages: Console) -> None:
    cookie = sign_in(pages, token=TOKEN, address=AWAY)
    for page in ("", "quotas", "xray", "groups"):
        assert ask(pages, page, AWAY, cookie=cookie).status == 200
