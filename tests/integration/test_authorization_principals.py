"""Principals of ACLs: mapped and unmapped names of certificates, unusual user names; metrics of the authorizer."""

import re
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.test_authorization import AUTHORIZER, EVERYTHING, create, delete, fetched, produced, rule
from tests.support.certificates import Certificates
from tests.support.client import Client, new_topics
from tests.support.secured import SecuredBroker

TOPIC_NAMES = ("mine", "other")


def prepare(root: Client) -> None:
    made = root.call("CreateTopics", 7, new_topics(*TOPIC_NAMES))
    assert {row["ErrorCode"] for row in made["Topics"]} == {0}


#: Value of ``ssl.principal.mapping.rules``.
RULES = r"RULE:^CN=([^,]+),OU=Clients,O=(Example)\\, Inc\.$/$1@$2/L,RULE:^CN=(root),OU=Admins,.*$/$1/,DEFAULT"


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    changes = {**AUTHORIZER, "super.users": "User:root", "ssl.principal.mapping.rules": RULES}
    with SecuredBroker(Certificates(tmp_path_factory.mktemp("certificates")), changes) as broker:
        with by_certificate(broker, broker.certificates.make("root", "root", unit="Admins")) as root:
            prepare(root)
        yield broker


def by_certificate(broker: SecuredBroker, certificate: Path | None) -> Client:
    client = broker.connect("TLS")
    context: ssl.SSLContext = broker.tls_context(certificate)
    client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
    return client


def test_rules_about_names_of_certificates(certified: SecuredBroker) -> None:
    """ACLs match a mapped name, a complete distinguished name, and ANONYMOUS for a client without a certificate."""
    broker, certificates = certified, certified.certificates
    odd = 'CN=Zoë \\"Z\\"\\, of \\<Ops\\>\\;\\+1,OU=Others,O=Example\\, Inc.'
    with ExitStack() as connections:
        root, alice, zoe, none, other = (
            connections.enter_context(by_certificate(broker, certificate))
            for certificate in (
                certificates.make("root2", "root", unit="Admins"),
                certificates.make("alice", "Alice"),
                certificates.make("zoe", 'Zoë "Z", of <Ops>;+1', unit="Others"),
                None,
                certificates.make("root3", "root", unit="Others"),  # not a super user
            )
        )
        clients = {"alice@example": alice, odd: zoe, "ANONYMOUS": none}
        assert [produced(client, "mine") for client in (*clients.values(), other)] == [29] * 4
        for name, client in clients.items():
            create(
                root,
                rule("mine", Principal=f"User:{name}"),
                rule("mi", 3, Principal=f"User:{name}", ResourcePatternType=4),
            )
            for each in clients.values():
                expected = (0, 0) if each is client else (29, 29)
                assert (produced(each, "mine"), fetched(each, "mine")) == expected
            assert (produced(client, "other"), produced(other, "mine")) == (29, 29)
            assert delete(root, PrincipalFilter=f"User:{name}") == 2
        described = other.call("DescribeAcls", 3, EVERYTHING)
        assert described["ErrorCode"] == 31


#: Names with characters that ACLs, settings and logs use as separators.
NAMES = ("a,b", "a=b", "a:b", "a;b", "with space", " ", "*", "zoë", "\U0001f600", "a\tb", "a\nb", 'q"q', "x" * 250)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    quoted = {name: name.replace("\\", "\\\\").replace('"', '\\"') for name in NAMES}
    users = " ".join(f'"user_{name}"="secret"' for name in quoted.values())
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    changes = {
        **AUTHORIZER,
        "super.users": "User:root",
        "listener.name.sasl.plain.sasl.jaas.config": f'{module} required user_root="secret" {users};',
        "kbroker.metrics.listener": "127.0.0.1:0",
    }
    with SecuredBroker(Certificates(tmp_path_factory.mktemp("certificates")), changes) as broker:
        with by_password(broker, "root") as root:
            prepare(root)
        yield broker


def by_password(broker: SecuredBroker, user: str) -> Client:
    client = broker.connect("SASL", "odd")
    client.call("SaslHandshake", 1, {"Mechanism": "PLAIN"})
    assert client.call("SaslAuthenticate", 2, {"AuthBytes": f"\0{user}\0secret".encode()})["ErrorCode"] == 0
    return client


def test_each_has_its_own_rules(broker: SecuredBroker) -> None:
    """An ACL for one user does not match another user; ``User:*`` matches every user, and so the user ``*`` too."""
    with ExitStack() as connections:
        root = connections.enter_context(by_password(broker, "root"))
        clients = {name: connections.enter_context(by_password(broker, name)) for name in NAMES}
        create(root, *(rule("mine", Principal=f"User:{name}") for name in NAMES if name != "*"))
        assert {name: produced(client, "mine") for name, client in clients.items()} == dict.fromkeys(NAMES, 0) | {
            "*": 29
        }
        for name in NAMES[:6]:
            assert delete(root, PrincipalFilter=f"User:{name}") == 1
            assert [other for other, client in clients.items() if produced(client, "mine") != 0] == [
                *NAMES[: NAMES.index(name) + 1], "*",
            ]  # fmt: skip
        create(root, rule("mine", Principal="User:*"))
        assert {produced(client, "mine") for client in clients.values()} == {0}
        delete(root)


def test_the_figures_of_the_authorizer(broker: SecuredBroker) -> None:
    """The metrics have the number of ACLs, and count each decision of a native handler and of Python once."""

    def figures() -> dict[str, float]:
        with urllib.request.urlopen(f"{broker.broker.metrics_url}/metrics", timeout=10) as page:
            text = page.read().decode()
        names = r"^kbroker_authorizer_(acls|decisions_total\{decision=\"\w+\"\}) (\S+)$"
        return {name: float(value) for name, value in re.findall(names, text, re.MULTILINE)}

    with by_password(broker, "root") as root, by_password(broker, "a,b") as client:
        create(root, rule("mine", Principal="User:a,b"), rule("mine", 3, Principal="User:a,b"))
        before = figures()
        assert before["acls"] == 2
        for topic, times in (("mine", 3), ("other", 2)):
            for _ in range(times):
                produced(client, topic)
                fetched(client, topic)
        client.call("FindCoordinator", 3, {"Key": "g", "KeyType": 0})
        after = figures()
        assert after["acls"] == 2
        grown = {name: after[name] - before[name] for name in before if name != "acls"}
        assert grown == {'decisions_total{decision="allowed"}': 6, 'decisions_total{decision="denied"}': 5}
        assert delete(root) == 2
        assert figures()["acls"] == 0
