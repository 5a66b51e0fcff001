"""Protection of the console: headers of every response, the secret of forms, configs of the mounted console."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.common.quotas import QuotaEntity
from kbroker.console.app import Console
from kbroker.quota.entity_rules import Alteration, QuotaOp
from tests.support.console import SETTINGS, TOKEN, ask, browser_of, pages_of, post, secret_of, served, was_of
from tests.support.fixtures import fixture_of

AWAY = "10.1.2.3"
ALICE = QuotaEntity.of({"user": "alice"})
RATE, SHADOW = "producer_byte_rate", "shadow.producer_byte_rate"
GUARDS = {
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
#: The complete policy, without 'unsafe-inline' and other hosts.
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "font-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}
broker = fixture_of(Broker, SETTINGS, scope="module")


@pytest.fixture
def editor(broker: Broker) -> Iterator[Console]:
    with pages_of(broker, TOKEN, may_edit=True) as made:
        yield made
    broker.context.quota_entities.alter([Alteration(ALICE, [QuotaOp(RATE, None), QuotaOp(SHADOW, None)])])


# ---------------------------------------------------------------- headers


@pytest.mark.parametrize(
    ("target", "more", "status"),
    [
        ("topics", {}, 200),
        ("topics", {"kb_part": "1"}, 200),
        ("rates", {}, 200),
        ("sign-in", {}, 200),
        ("assets/console.css", {}, 200),
        ("assets/none.css", {}, 404),
        ("topics", {"address": AWAY}, 303),
        ("topics?sort=colour", {}, 400),
        ("topics", {"kb_part": "1", "address": AWAY}, 401),
        ("topics", {"host": "evil.example"}, 403),
        ("none", {}, 404),
        ("topics", {"method": "PUT"}, 405),
        ("groups", {}, 500),
    ],
)
def test_every_response_carries_the_guards(
    editor: Console, broker: Broker, monkeypatch: pytest.MonkeyPatch, target: str, more: dict[str, Any], status: int
) -> None:
    """Pages, parts, files, redirects and errors all have each protective header once."""
    if status == 500:
        monkeypatch.setattr(editor, "_made", lambda *_: 1 // 0)
    response = ask(editor, target, **more)
    assert response.status == status
    headers = dict(response.headers)
    assert headers.get("Allow") == ("GET, HEAD, POST" if status == 405 else None)
    assert len(headers) == len(response.headers), "a header twice"
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy == POLICY
    assert {name: headers[name] for name in GUARDS} == GUARDS
    is_file = target.startswith("assets/") and status == 200
    assert headers["Cache-Control"] == ("private, max-age=3600" if is_file else "no-store")


# ---------------------------------------------------------------- forms


def test_a_form_from_elsewhere_is_refused(editor: Console, broker: Broker) -> None:
    """A form from another site, without an origin, or from a client without access is refused and changes nothing."""
    secret = secret_of(ask(editor, "quota?user=alice").body.decode())
    fields = {"form_secret": secret, "user": "alice", "key": RATE, "value": "1MB", "effect": "enforce"}
    fields["was"] = was_of(post(editor, "quota/preview", fields).body.decode())
    for more, status in (
        ({"origin": "http://evil.example"}, 403),
        ({"origin": ""}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9401"}, 403),
        ({"host": "evil.example", "origin": "http://evil.example"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"content_type": "text/plain"}, 415),
        ({"address": AWAY}, 401),
        ({"via": "1.1 proxy"}, 401),
    ):
        for path in ("quota/preview", "quota/apply"):
            assert post(editor, path, fields, **more).status == status, (path, more)
    assert post(editor, "sign-in", {"token": TOKEN}, sec_fetch_site="cross-site").status == 403
    for wrong in ("", secret[:-1], "0" * 64, "é"):
        assert post(editor, "quota/apply", {**fields, "form_secret": wrong}).status == 403
    assert broker.context.quota_entities.of(ALICE) == {}
    assert post(editor, "quota/apply", fields).status == 303
    assert broker.context.quota_entities.of(ALICE) == {RATE: 1e6}


def test_a_session_sees_no_page_that_was_kept_for_another(editor: Console) -> None:
    """Pages are cached for all clients, but the secret of a form differs between sessions."""
    cookies = []
    for _ in range(2):
        signed_in = post(editor, "sign-in", {"token": TOKEN}, AWAY)
        cookies.append(dict(signed_in.headers)["Set-Cookie"].partition(";")[0])
    pages = [ask(editor, "quota?user=alice", AWAY, cookie=cookie).body.decode() for cookie in cookies]
    local = ask(editor, "quota?user=alice").body.decode()
    assert len({*map(secret_of, pages), secret_of(local)}) == 3


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_session_is_no_use_to_another_sites_page(editor: Console, site: str) -> None:
    """The cookie is refused in requests from other sites, which a browser without SameSite would send."""
    signed_in = post(editor, "sign-in", {"token": TOKEN}, AWAY)
    cookie = dict(signed_in.headers)["Set-Cookie"].partition(";")[0]
    assert ask(editor, "topics", AWAY, cookie=cookie, sec_fetch_site="same-origin").status == 200
    assert ask(editor, "topics", AWAY, cookie=cookie, sec_fetch_site=site).status == 303
    assert ask(editor, "topics", cookie=cookie, sec_fetch_site=site).status == 403


def test_promoting_is_one_change(editor: Console, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promotion sets the enforced quota and removes the shadow quota in one change."""
    store = broker.context.quota_entities
    store.alter([Alteration(ALICE, [QuotaOp(RATE, 5.0), QuotaOp(SHADOW, 3.0)])])
    asked: list[Sequence[Alteration]] = []
    alter = store.alter

    def noting(alterations: Sequence[Alteration], validate_only: bool = False) -> Any:
        if not validate_only:
            asked.append(alterations)
        return alter(alterations, validate_only)

    monkeypatch.setattr(store, "alter", noting)
    secret = secret_of(ask(editor, "quota?user=alice").body.decode())
    fields = {"form_secret": secret, "user": "alice", "key": RATE, "effect": "promote"}
    fields["was"] = was_of(post(editor, "quota/preview", fields).body.decode())
    assert asked == []
    assert post(editor, "quota/apply", fields).status == 303
    assert [len(alterations) for alterations in asked] == [1]
    assert store.of(ALICE) == {RATE: 3.0}


# ---------------------------------------------------------------- as `kbroker serve` mounts it


@pytest.mark.parametrize("edit", [None, False, True])
def test_quotas_are_changed_only_where_the_setting_says_so(edit: bool | None) -> None:
    """Without `kbroker.console.edit`, a change is refused even with a session and the secret of its form."""
    changes = {} if edit is None else {"kbroker.console.edit": edit}
    with served({**SETTINGS, "kbroker.console.token": TOKEN, **changes}) as made:
        browser = browser_of(made)
        assert browser.ask("sign-in", {"token": TOKEN})[0] == 303
        status, page = browser.ask("quota?user=alice")
        assert (status, "quota/preview" in page) == (200, bool(edit))
        change = {"user": "alice", "key": RATE, "value": "1MB", "effect": "enforce", "form_secret": secret_of(page)}
        if edit:
            change["was"] = was_of(browser.ask("quota/preview", change)[1])
        status, page = browser.ask("quota/apply", change)
        assert (status, "kbroker.console.edit is off" in page) == (303 if edit else 403, not edit)
        assert made.context.quota_entities.of(ALICE) == ({RATE: 1e6} if edit else {})


@pytest.mark.parametrize(
    ("knows_clients", "has_token", "status", "of_another_name"),
    [(False, False, 200, 403), (False, True, 200, 403), (True, False, 403, 403), (True, True, 303, 303)],
)
def test_who_sees_the_pages_is_as_at_the_other_paths_of_the_port(
    knows_clients: bool, has_token: bool, status: int, of_another_name: int
) -> None:
    """A broker that authenticates clients requires the token of local clients too; without one, access is denied."""
    settings = dict(SETTINGS)
    if knows_clients:
        settings["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    if has_token:
        settings["kbroker.console.token"] = TOKEN
    with served(settings) as made:
        browser = browser_of(made)
        assert browser.ask("topics")[0] == status
        assert browser.ask("topics", Host="evil.example")[0] == of_another_name
        for host in (browser.address, "evil.example"):
            found = browser.ask("topics", Host=host, Authorization=f"Bearer {TOKEN}")[0]
            assert found == (200 if has_token else 401)
