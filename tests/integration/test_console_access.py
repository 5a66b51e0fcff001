"""ACLs, users and delegation tokens in the console, with the permissions of the signed-in user."""

import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from urllib.parse import urlencode

import pytest

from kbroker.broker import Broker
from kbroker.client.acls import Acls
from kbroker.client.security import ClientSecurity
from kbroker.client.tokens import Tokens
from kbroker.client.users import Users
from kbroker.common.errors import KafkaError
from kbroker.common.http_messages import HttpResponse
from kbroker.common.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from kbroker.console.app import Console
from kbroker.testing import EmbeddedCluster
from tests.support.console import (
    SECURED,
    SETTINGS,
    TOKEN,
    ask,
    change,
    cluster_of,
    hidden_fields,
    pages_of,
    post,
    preview,
    secret_of,
    served,
    sign_in,
    text_of,
)

MARKUP = "<script>alert(1)</script>\"'&\u202e"
PASSWORD = "alice's password"
RULE = {"principal": "User:bob", "operation": "Read", "resource": "Topic", "name": "orders", "permission": "Allow"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with served({**SECURED, "delegation.token.secret.key": "the-key"}) as made:
        with cluster_of(made) as root:
            Users(root).set("alice", "SCRAM-SHA-256", PASSWORD, 4096)
        yield made


@pytest.fixture
def operator(pages: Console) -> str:
    """Cookie of the holder of the token, who has all permissions."""
    return sign_in(pages, token=TOKEN)


def show(pages: Console, cookie: str, page: str, /, **query: str) -> HttpResponse:
    return ask(pages, f"{page}?{urlencode(query)}", cookie=cookie)


def shown_secrets(response: HttpResponse) -> dict[str, str]:
    assert response.status == 200, text_of(response)
    return {
        name: unescape(value)
        for name, value in re.findall(r"<dt>([^<]*)</dt><dd><code>([^<]*)</code></dd>", response.body.decode())
    }


def test_the_nodes_of_a_secured_cluster_in_one_process() -> None:
    """Without a password for the other nodes' listeners, the console reaches them within the process."""
    settings = {**SECURED, "kbroker.metrics.listener": ""}
    with EmbeddedCluster(2, settings) as nodes, pages_of(nodes.node(1), TOKEN, may_edit=True) as pages:
        with cluster_of(nodes.node(1)) as root:
            Users(root).set("alice", "SCRAM-SHA-256", PASSWORD, 4096)
        operator, alice = sign_in(pages, token=TOKEN), sign_in(pages, "alice", PASSWORD)
        assert "broker 2" in text_of(show(pages, operator, "configs", kind="broker", name="2"))
        assert ask(pages, "configs?kind=broker&name=2", cookie=alice).status == 403, "as the signed-in user"
        nodes.stop_node(2)
        gone = ask(pages, "configs?kind=broker&name=2&q=log", cookie=operator)
        assert gone.status >= 400, text_of(gone)


# ---------------------------------------------------------------- ACLs


def test_acls_are_added_listed_and_removed(pages: Console, broker: Broker, operator: str) -> None:
    with cluster_of(broker) as root:
        acls = Acls(root)
        assert change(pages, operator, "acl-add", **RULE).status == 303
        assert change(pages, operator, "acl-add", **RULE, host="::1", pattern="Prefixed").status == 303
        literal = Acl(
            ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:bob", "*", Operation.READ, Permission.ALLOW
        )
        prefixed = literal._replace(pattern_type=PatternType.PREFIXED, host="0:0:0:0:0:0:0:1")
        assert {literal, prefixed} <= set(acls.list())
        again = preview(pages, operator, "acl-add", **RULE)
        assert "None: nothing would change" in text_of(again)
        page = text_of(show(pages, operator, "acls", q="BOB", type="Topic"))
        assert re.search(
            r"User:bob Read Topic orders anywhere .*User:bob Read Topic orders and all names that begin with it", page
        ), page
        assert "No ACLs" in text_of(show(pages, operator, "acls", q="bob", type="Group"))
        found = change(pages, operator, "acls/remove", **RULE, host="0:0:0:0:0:0:0:1", pattern="Prefixed", exact="1")
        assert found.status == 303
        assert prefixed not in acls.list()
        assert change(pages, operator, "acls/remove", **RULE, pattern="Literal", host="*", exact="1").status == 303
        assert literal not in acls.list()


WRONG = [
    ({"principal": "bob"}, "principalType:principalName"),
    ({"principal": "User:"}, "Expected a principal such as User:alice"),
    ({"operation": "Eat"}, "Expected one of All, Read,"),
    ({"resource": "Cup"}, "Expected one of Topic, Group,"),
    ({"name": ""}, "Expected a name of a Topic, or * for all, got none."),
    ({"host": "example.com"}, "Expected an address such as 10.0.0.7 or ::1, got 'example.com'."),
]


def test_wrong_rules(pages: Console, operator: str) -> None:
    for fields, why in WRONG:
        refused = preview(pages, operator, "acl-add", **{**RULE, **fields})
        assert (refused.status, why in text_of(refused)) == (400, True), text_of(refused)


def test_a_question_is_decided_by_a_rule(pages: Console, broker: Broker, operator: str) -> None:
    """A check finds an ACL that denies, one that allows by implication, no ACL, or a super user."""

    def said(**query: str) -> str:
        return text_of(show(pages, operator, "acl-check", asked="1", **{**RULE, **query}))

    assert "No : User:bob from 127.0.0.1: Read on Topic orders . No ACL allows it." in said()
    assert change(pages, operator, "acl-add", **RULE).status == 303
    yes = "Yes : User:bob from 127.0.0.1: Describe on Topic orders . This rule decides: ALLOW User:bob from *: READ on"
    assert yes in said(operation="Describe")
    denial = {**RULE, "principal": "User:*", "name": "ord", "pattern": "Prefixed", "permission": "Deny"}
    assert change(pages, operator, "acl-add", **denial, host="10.1.2.3").status == 303
    assert "This rule decides: DENY User:* from 10.1.2.3" in said(host="10.1.2.3")
    assert "Yes :" in said(host="10.1.2.4")
    assert "It is a super user (super.users)." in said(principal="User:root")
    assert "Yes : User:bob from 127.0.0.1: Alter on Cluster kafka-cluster" not in said(
        resource="Cluster", operation="Alter"
    )
    wrong = show(pages, operator, "acl-check", asked="1", **{**RULE, "host": "x"})
    assert (wrong.status, "Expected an address" in text_of(wrong)) == (400, True)
    with cluster_of(broker) as root:
        Acls(root).remove([])


def test_missing_permissions_are_named(pages: Console) -> None:
    alice = sign_in(pages, "alice", PASSWORD)
    for page, operation in (
        ("acls", "Describe"),
        ("users", "Describe"),
        ("acl-check?asked=1&name=x", "DescribeConfigs"),
    ):
        denied = ask(pages, page, cookie=alice)
        assert denied.status == 403, page
        assert f"No ACL allows User:alice the operation {operation} on the cluster." in text_of(denied)
    for action, fields in (("acl-add", RULE), ("users/add", {"user": "x"}), ("users/remove", {"user": "alice"})):
        assert preview(pages, alice, action, **fields).status == 403
    assert ask(pages, "groups", cookie=alice).status == 200


def test_without_an_authorizer() -> None:
    with served(SETTINGS) as made, pages_of(made, may_edit=True) as pages:
        assert "This cluster has no authorizer" in text_of(ask(pages, "acls"))
        answer = text_of(ask(pages, "acl-check?asked=1&principal=User:a&name=x"))
        assert "Yes : User:a from 127.0.0.1: Read on Topic x . The cluster has no authorizer" in answer
        assert "Sign in as a user" in text_of(ask(pages, "tokens"))


# ---------------------------------------------------------------- users


def test_users_get_generated_passwords(
    pages: Console, broker: Broker, operator: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A generated password is shown once and not logged, replaces the previous one, and ends with the user."""

    def can_log_in(password: str) -> bool:
        line = (
            f'org.apache.kafka.common.security.scram.ScramLoginModule required username="dora" password="{password}";'
        )
        security = ClientSecurity(
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": line}
        )
        try:
            security.open_cluster(broker.bootstrap_servers).close()
        except KafkaError:
            return False
        return True

    with caplog.at_level(logging.INFO, "kbroker.console.app"):
        add = hidden_fields(preview(pages, operator, "users/add", user="dora").body.decode())
        with ThreadPoolExecutor(2) as clicks:  # a double click: the browser shows the second response
            twice = clicks.map(lambda _: post(pages, "users/add/apply", add, cookie=operator), range(2))
            first, again = (shown_secrets(response)["Password"] for response in twice)
        assert first == again
        assert can_log_in(first)
        other = sign_in(pages, token=TOKEN)
        stolen = {**add, "form_secret": secret_of(ask(pages, "sign-in", cookie=other).body.decode())}
        assert first not in post(pages, "users/add/apply", stolen, cookie=other).body.decode(), "another session"
        for fields in ({**add, "user": "eve"}, {**add, "more": "1"}):
            assert first not in post(pages, "users/add/apply", fields, cookie=operator).body.decode(), "another form"
        post(pages, "sign-out", {"form_secret": add["form_secret"]}, cookie=operator)
        assert first not in post(pages, "users/add/apply", add, cookie=operator).body.decode(), "signed out"
        operator = sign_in(pages, token=TOKEN)
        assert "dora SCRAM-SHA-512 8,192" in text_of(show(pages, operator, "users", q="DOR"))
        assert "has a SCRAM-SHA-512 credential already" in text_of(preview(pages, operator, "users/add", user="dora"))
        dora = {"user": "dora", "mechanism": "SCRAM-SHA-512"}
        stale = hidden_fields(preview(pages, operator, "users/password", **dora).body.decode())
        second = shown_secrets(change(pages, operator, "users/password", **dora))["Password"]
        assert post(pages, "users/password/apply", stale, cookie=operator).status == 409, "changed meanwhile"
        assert (can_log_in(first), can_log_in(second)) == (False, True)
        assert change(pages, operator, "users/remove", "dora", **dora).status == 303
        assert not can_log_in(second)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" from ")[2] for line in lines if "dora" in line] == [
        "127.0.0.1: Add user dora (dora, SCRAM-SHA-512: none -> 8,192 iterations)",
        "127.0.0.1: Change the password of dora (dora, SCRAM-SHA-512: 8,192 iterations -> a new password)",
        "127.0.0.1: Remove user dora (dora, SCRAM-SHA-512: 8,192 iterations -> none)",
    ]
    assert not any(secret in line for secret in (first, second) for line in lines)
    bad = preview(pages, operator, "users/add", user="dora", iterations="1")
    assert (bad.status, "from 4,096 to 16,384" in text_of(bad)) == (400, True)
    assert preview(pages, operator, "users/add", user="dora", mechanism="PLAIN").status == 400
    bad = preview(pages, operator, "users/add", user="Jörg")
    assert (bad.status, "a name of ASCII characters" in text_of(bad)) == (400, True)
    assert "has no SCRAM-SHA-512 credential" in text_of(preview(pages, operator, "users/password", user="dora"))


# ---------------------------------------------------------------- tokens


def test_a_user_has_tokens(pages: Console, broker: Broker) -> None:
    """A signed-in user creates, renews and expires a token, whose HMAC is shown once and can log in."""
    alice = sign_in(pages, "alice", PASSWORD)
    assert "No delegation tokens" in text_of(ask(pages, "tokens", cookie=alice))
    made = shown_secrets(change(pages, alice, "tokens/create", renewers="User:bob", lifetime="2h"))
    by_token = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
    security = ClientSecurity({**by_token, "sasl.jaas.config": made["sasl.jaas.config"]})
    with security.open_cluster(broker.bootstrap_servers) as client:
        client.fetch_metadata([])
    page = ask(pages, "tokens?q=alice", cookie=alice)
    assert made["Token id"] in text_of(page)
    assert made["HMAC"] not in text_of(page)
    token = {"token": made["Token id"]}
    assert "30 min 0 s from now" in text_of(preview(pages, alice, "tokens/renew", period="30min", **token))
    assert change(pages, alice, "tokens/renew", period="30min", **token).status == 303
    with cluster_of(broker, "User:alice") as client:
        (found,) = Tokens(client).list()
    now_ms = broker.context.clock.wall_ms()
    assert 1_700_000 < found.token.expiry_ms - now_ms <= 1_800_000
    assert change(pages, alice, "tokens/expire", **token).status == 303
    assert "No delegation tokens" in text_of(ask(pages, "tokens?q=", cookie=alice))
    gone = preview(pages, alice, "tokens/renew", **token)
    assert (gone.status, "it may have expired" in text_of(gone)) == (400, True)
    for fields in ({"lifetime": "soon"}, {"lifetime": "0s"}, {"owner": "bob"}, {"renewers": "bob"}):
        assert preview(pages, alice, "tokens/create", **fields).status == 400
    denied = preview(pages, alice, "tokens/create", owner="User:bob")
    assert denied.status == 200, "ACLs are checked when the token is made"
    refused = change(pages, alice, "tokens/create", owner="User:bob")
    assert refused.status == 403
    assert "No ACL allows User:alice the operation CreateTokens on User 'User:bob'." in text_of(refused)


def test_names_stay_text(pages: Console, broker: Broker, operator: str) -> None:
    """Names cannot add markup to any of these pages."""
    name = MARKUP.replace("\u202e", "")
    fields = {**RULE, "principal": f"User:{MARKUP}", "name": MARKUP}
    assert change(pages, operator, "acl-add", **fields).status == 303
    shown_secrets(change(pages, operator, "users/add", user=name))
    for page, query in (
        ("acls", {}), ("acls", {"q": MARKUP, "type": MARKUP}), ("users", {"q": name}), ("users", {}),
        ("acl-check", {"asked": "1", **fields}), ("acl-check", {"asked": "1", **fields, "host": MARKUP}),
        ("acl-add", fields), ("tokens", {"q": MARKUP}), ("transactions", {"q": MARKUP, "state": MARKUP}),
        ("transaction", {"id": MARKUP}), ("hanging", {"topic": MARKUP}),
    ):  # fmt: skip
        body = show(pages, operator, page, **query).body.decode()
        assert "<script>alert" not in body, page
        assert "\u202e" not in re.sub(r'(value|href|data-live)="[^"]*"', "", body), page
    body = preview(pages, operator, "acls/remove", **fields, pattern="Literal", host="*").body.decode()
    assert "<script>alert" not in body
    assert change(pages, operator, "users/remove", name, user=name, mechanism="SCRAM-SHA-512").status == 303


def test_ten_thousand_acls(pages: Console, broker: Broker, operator: str) -> None:
    with cluster_of(broker) as root:
        rule = Acl(ResourceType.GROUP, "", PatternType.LITERAL, "User:many", "*", Operation.READ, Permission.ALLOW)
        Acls(root).add([rule._replace(resource_name=f"group-{number:05d}") for number in range(10_000)])
    page = show(pages, operator, "acls", type="Group", page="200").body.decode()
    assert page.count('<th scope="row">') == 50
    assert "9,951 to 10,000 of 10,000 ACLs" in text_of(show(pages, operator, "acls", type="Group", page="200"))
    assert "1 to 1 of 1 ACLs" in text_of(show(pages, operator, "acls", q="group-04711"))
