"""Console at the HTTP port: access, the pages of a broker with clients, invalid input."""

import http.client
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from kbroker import console
from kbroker.broker import Broker
from kbroker.common.http_messages import HttpResponse
from kbroker.common.quotas import QuotaEntity
from kbroker.console.app import POLICY, Console
from kbroker.console.sign_in import COOKIE
from kbroker.coordinator.share_group.membership import HeartbeatRequest
from kbroker.coordinator.streams_group import membership as streams
from kbroker.log.checkpoints import uuid_to_text
from kbroker.metadata.topic_rules import NewTopic
from kbroker.observe.wrong_tokens import GUESSES
from kbroker.quota.entity_rules import Alteration, QuotaOp
from tests.support import console as support
from tests.support import wire
from tests.support.broker import run_to_end, wait_for
from tests.support.console import TOKEN, apply, ask, pages_of, post, secret_of, served, was_of
from tests.support.errors import raising
from tests.support.streams_groups import subtopology, topology

MARKUP = "<script>alert(1)</script>\"'&\u202e"
SETTINGS: dict[str, object] = {
    **support.SETTINGS,
    "kbroker.console.token": TOKEN,
    "kbroker.request.log.topic": "__request_log",
    "message.max.bytes": 12 << 20,
    "socket.request.max.bytes": 64 << 20,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with served(SETTINGS) as made:
        made.context.topics.create(NewTopic("orders", 2))
        made.context.topics.create(NewTopic("binary", 1))
        with wire.Connection(made.bootstrap_servers) as client:
            client.ask(wire.produce("orders", 0, wire.batch([b'{"sku":"<b>1</b>"}', b"plain <i>text</i>"])))
            client.ask(wire.produce("binary", 0, wire.batch([b"\x00" + os.urandom(10 << 20)])))
        yield made


@pytest.fixture
def pages(broker: Broker) -> Iterator[Console]:
    with pages_of(broker, TOKEN) as made:
        yield made


def text(response: HttpResponse) -> str:
    return response.body.decode()


# ---------------------------------------------------------------- HTTP port


def get(broker: Broker, target: str, method: str = "GET", body: str = "", **headers: str) -> tuple[int, str, Any]:
    assert broker.metrics_url is not None
    with closing(http.client.HTTPConnection(broker.metrics_url.removeprefix("http://"), timeout=30)) as connection:
        connection.request(method, target, body or None, {k.replace("_", "-"): v for k, v in headers.items()})
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", "replace"), response.headers


def test_it_is_at_the_http_port(broker: Broker) -> None:
    status, body, headers = get(broker, "/console")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "Overview" in body
    assert headers["Content-Security-Policy"] == POLICY
    assert "unsafe" not in POLICY
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cache-Control"] == "no-store"
    assert get(broker, "/console/", "HEAD")[:2] == (200, "")
    assert get(broker, "/metrics")[0] == get(broker, "/ready")[0] == 200
    assert get(broker, "/consoles")[0] == 404


def test_the_overview_counts_no_internal_topics(broker: Broker, pages: Console) -> None:
    """The partitions are those of the counted topics."""
    views = [view for view in broker.context.topics.all() if not view.is_internal]
    partitions = sum(len(view.partitions) for view in views)
    page = ask(pages, "").body.decode()
    assert re.search(rf">{len(views)}</a></dd></div>\s*<div><dt>partitions</dt><dd>{partitions}</dd>", page)


@pytest.mark.parametrize(
    ("target", "headers", "status"),
    [
        ("/console/topics", {"Host": "evil.example"}, 403),
        ("/console/topics", {"Sec_Fetch_Site": "cross-site"}, 403),
        ("/console/assets/../app.py", {}, 404),
        ("/console/assets/%2e%2e/app.py", {}, 404),
        ("/console/assets/htmx.LICENSE", {}, 404),
        ("/console/none", {}, 404),
        ("/console/topic?topic=none", {}, 404),
        ("/console/topic", {}, 400),
        ("/console/messages?topic=orders&partition=2", {}, 404),
        ("/console/messages?topic=orders&offset=-7", {}, 400),
        ("/console/messages?topic=orders&offset=%FF", {}, 400),
        ("/console/messages?topic=orders&time=noon", {}, 400),
        ("/console/messages?topic=orders&count=100000", {}, 400),
        ("/console/message?topic=orders&offset=77", {}, 404),
        ("/console/group?group=none", {}, 404),
        ("/console/topics?sort=colour", {}, 400),
        ("/console/topics?q=1&q=2", {}, 400),
    ],
)  # fmt: skip
def test_bad_requests(broker: Broker, target: str, headers: dict[str, str], status: int) -> None:
    """A bad request is refused with its status, and is not an internal error."""
    found = get(broker, target, **headers)
    assert found[0] == status
    assert "the broker's log says why" not in found[1]


def test_posts_that_no_page_sends(broker: Broker) -> None:
    kind = {"Content_Type": "application/x-www-form-urlencoded"}
    assert get(broker, "/console/sign-out", "POST", "a=b", **kind)[0] == 403  # without the Origin header
    assert get(broker, "/console/sign-out", "POST", "a=b", Origin="http://evil.example", **kind)[0] == 403
    assert get(broker, "/console/sign-out", "POST", "x" * 70_000, **kind)[0] == 413
    assert get(broker, "/metrics", "POST", "a=b", **kind)[0] == 405


@pytest.mark.parametrize(
    ("target", "served"),
    [
        ("/console", "GET, HEAD and POST"),
        ("/console/topics?q=x", "GET, HEAD and POST"),
        ("/consoles", "GET and HEAD"),
        ("/xray", "GET and HEAD"),
        ("/metrics", "GET and HEAD"),
    ],
)
@pytest.mark.parametrize("method", ["DELETE", "PUT", "OPTIONS"])
def test_a_method_that_is_not_served_gets_those_that_are(broker: Broker, target: str, served: str, method: str) -> None:
    """The response lists the methods of its path; below /console these include POST."""
    status, sentence, headers = get(broker, target, method)
    assert (status, sentence) == (405, f"only {served} are served here\n")
    assert headers["Allow"] == served.replace(" and ", ", ")


def test_a_broker_without_jinja_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Broker(SETTINGS)
    made.mount("/console", raising(ModuleNotFoundError("no module named jinja2", name="jinja2")))
    with made:
        status, body, _ = get(made, "/console/")
    assert (status, body) == (503, "/console needs jinja2, which is not installed: pip install 'kbroker[console]'\n")


def test_nothing_of_it_is_loaded_before_it_is_asked_for() -> None:
    """Jinja2 and the pages are loaded with the first request, as most brokers do not need them."""
    program = f"""
import sys, urllib.request
from kbroker import console
from kbroker.common.quotas import QuotaEntity
from kbroker.broker import Broker
from kbroker.quota.entity_rules import Alteration, QuotaOp
broker = Broker({SETTINGS!r}); console.mount(broker); broker.start()
loaded = sorted(name for name in sys.modules if name.startswith(("jinja2", "kbroker.console.")))
assert loaded == [], loaded
assert b"Overview" in urllib.request.urlopen(broker.metrics_url + "/console/").read()
assert "jinja2" in sys.modules
broker.stop(); broker.start()
assert b"Overview" in urllib.request.urlopen(broker.metrics_url + "/console/").read()
broker.stop()
"""
    run_to_end([sys.executable, "-c", program], seconds=60)


# ---------------------------------------------------------------- access


def test_signing_in(pages: Console) -> None:
    """A client of another host signs in with the token and receives a cookie, after the checks of the form's origin."""
    away = "10.1.2.3"
    refused = ask(pages, "topics", address=away)
    assert (refused.status, dict(refused.headers)["Location"]) == (303, "/console/sign-in")
    assert ask(pages, "rates", address=away, kb_part="1").status == 401
    assert 'type="password"' in text(ask(pages, "sign-in", address=away))
    assert post(pages, "sign-in", {"token": TOKEN}, away, origin="http://evil.example").status == 403
    assert post(pages, "sign-in", {"token": TOKEN}, away, content_type="text/plain").status == 415
    wrong = post(pages, "sign-in", {"token": TOKEN[:-1] + "é"}, away)
    assert (wrong.status, "kbroker.console.token" in text(wrong)) == (403, True)
    right = post(pages, "sign-in", {"token": TOKEN}, away)
    cookie = dict(right.headers)["Set-Cookie"]
    assert right.status == 303
    assert re.fullmatch(rf"{COOKIE}_9400=[\w-]{{43}}; Path=/console; Max-Age=43200; HttpOnly; SameSite=Strict", cookie)
    assert TOKEN not in cookie
    mine = cookie.partition(";")[0]
    page = ask(pages, "topics", address=away, cookie=mine)
    assert page.status == 200
    assert ask(pages, "topics", address=away, cookie=mine + "x").status == 303
    assert ask(pages, "topics", address=away, cookie=mine, sec_fetch_site="cross-site").status != 200
    again = dict(post(pages, "sign-in", {"token": TOKEN}, away).headers)["Set-Cookie"].partition(";")[0]
    other = secret_of(text(ask(pages, "topics", address=away, cookie=again)))
    assert post(pages, "sign-out", {"form_secret": other}, away, cookie=mine).status == 403, "another session's form"
    assert post(pages, "sign-out", {"form_secret": secret_of(text(page))}, away, cookie=mine).status == 303
    assert ask(pages, "topics", address=away, cookie=mine).status == 303


def test_a_guessed_token(pages: Console) -> None:
    """After several wrong tokens, an address must wait even with the right token; other addresses need not."""
    for _ in range(GUESSES):
        assert post(pages, "sign-in", {"token": "x" * 20}, "10.6.6.6").status == 403
    waiting = post(pages, "sign-in", {"token": TOKEN}, "10.6.6.6")
    assert waiting.status == 429
    assert 0 < int(dict(waiting.headers)["Retry-After"]) <= 60
    assert post(pages, "sign-in", {"token": TOKEN}, "10.6.6.7").status == 303


@pytest.mark.parametrize("at_console_first", [True, False])
def test_wrong_tokens_of_an_address_count_once_for_the_whole_port(at_console_first: bool) -> None:
    """Wrong tokens at the console and at other paths of the port are counted together."""
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    with served(SETTINGS) as made:

        def sign_in(token: str) -> int:
            origin = str(made.metrics_url)
            return get(made, "/console/sign-in", "POST", urlencode({"token": token}), Origin=origin, **form)[0]

        def route(token: str) -> int:
            return get(made, "/xray", Authorization=f"Bearer {token}")[0]

        guess, refused, other = (sign_in, 403, route) if at_console_first else (route, 401, sign_in)
        assert [guess("x" * 20) for _ in range(GUESSES)] == [refused] * GUESSES
        assert (guess(TOKEN), other(TOKEN)) == (429, 429)
        assert get(made, "/console/topics", Authorization=f"Bearer {TOKEN}")[0] == 429


def test_without_a_token_only_this_machine_may(broker: Broker) -> None:
    with pages_of(broker) as pages:
        assert ask(pages, "topics").status == 200
        away = ask(pages, "topics", address="10.1.2.3")
        assert (away.status, "Only this machine" in text(away)) == (403, True)
        assert "kbroker.console.token" in text(ask(pages, "sign-in", address="10.1.2.3"))
        assert post(pages, "sign-in", {"token": ""}, "10.1.2.3").status == 403


# ---------------------------------------------------------------- pages


PATHS = (
    *("", "topics?internal=1", "topic?topic=orders", "messages?topic=orders", "message?topic=orders&offset=0"),
    *("groups", "clients", "throughput", "throttles", "requests", "quotas", "quota?client-id=c", "explain", "xray"),
    *("sign-in", "none"),
)


@pytest.mark.parametrize("path", PATHS)
def test_a_page_asks_for_nothing_elsewhere_and_has_no_script_or_style_inside(pages: Console, path: str) -> None:
    page = text(ask(pages, path))
    assert re.findall(r"<script(?! src=\"/console/assets/[\w.]+\" defer></script>)", page) == []
    assert not re.search(r"\sstyle=|<style|\son\w+=|javascript:|https?://(?!www\.w3\.org)", page)
    assert "<b>1</b>" not in page
    assert "<i>text" not in page


def test_messages(pages: Console) -> None:
    page = text(ask(pages, "messages?topic=orders&partition=0"))
    assert "{\n  &#34;sku&#34;: &#34;&lt;b&gt;1&lt;/b&gt;&#34;\n}" in page
    assert "plain &lt;i&gt;text&lt;/i&gt;" in page
    assert "Offset 1</a>" in page
    assert "Offset 0</a>" not in text(ask(pages, "messages?topic=orders&offset=1"))
    assert "Partition 0, offset 1</a>" in text(ask(pages, "messages?topic=orders"))
    assert "No records from here on" in text(ask(pages, "messages?topic=orders&time=2990-01-01T00:00:00"))
    assert "the partition is empty" in text(ask(pages, "messages?topic=orders&partition=1"))


def test_a_binary_record_of_ten_megabytes(pages: Console) -> None:
    """The page shows the size and the first bytes of a large value, which can be saved as a file."""
    page = text(ask(pages, "messages?topic=binary"))
    assert "binary, 10.0 MiB; shown: the first 128 B of 10.0 MiB" in page
    assert len(page) < 10_000
    assert "the first 16.0 KiB of 10.0 MiB" in text(ask(pages, "message?topic=binary&offset=0"))
    saved = ask(pages, "value?topic=binary&offset=0")
    assert (len(saved.body), saved.content_type) == ((10 << 20) + 1, "application/octet-stream")
    headers = dict(saved.headers)
    assert headers["Content-Disposition"] == 'attachment; filename="binary-0-0.value"'
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_ids_of_topics_are_kafkas(pages: Console, broker: Broker) -> None:
    """A page shows the topic id in the format of Kafka's tools, with 22 characters."""
    view = broker.context.topics.get("orders")
    assert view is not None
    assert f"Id <code>{uuid_to_text(view.topic_id)}</code>" in text(ask(pages, "topic?topic=orders"))


def test_names_with_markup(pages: Console, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of topics, clients and headers can neither add markup to a page nor reverse its text."""
    topic = broker.context.topics.get("orders")
    assert topic is not None
    view = topic._replace(
        name=MARKUP, partitions=(None,), registrations=topic.registrations[:1], configs={"k" + MARKUP: MARKUP}
    )
    topics = SimpleNamespace(
        all=lambda: [view], get=lambda name: view if name == MARKUP else None, partition=lambda *a: None
    )
    monkeypatch.setattr(broker.context, "topics", topics)
    name = quote(MARKUP)
    paths = (
        *("topics", f"topics?q={name}", f"topics?sort={name}", f"topic?topic={name}", f"topic?topic=x{name}"),
        *(f"messages?topic={name}", f"messages?topic={name}&partition={name}", f"throttles?q={name}"),
        f"requests?q={name}&api={name}",
    )
    for path in paths:
        page = text(ask(pages, path))
        assert "<script>alert" not in page, path
        assert "\u202e" not in re.sub(r'value="[^"]*"|href="[^"]*"', "", page), path
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;\\u202e" in text(ask(pages, "topics"))


def test_ten_thousand_topics(pages: Console, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page shows fifty topics, and the filter searches all of them."""
    some = broker.context.topics.all()[0]
    views = [some._replace(name=f"topic-{number:05d}", is_internal=False) for number in range(10_000)]
    found = SimpleNamespace(all=lambda: views, get={view.name: view for view in views}.get)
    monkeypatch.setattr(broker.context, "topics", found)
    began_s = time.process_time()
    page = text(ask(pages, "topics?page=200"))
    assert time.process_time() - began_s < 0.3
    assert page.count('<th scope="row">') == 50
    assert "9,951 to 10,000 of 10,000 topics" in page
    assert len(page) < 20_000
    assert text(ask(pages, "topics?q=TOPIC-0777&sort=size")).count('<th scope="row">') == 10


def test_a_part_alone(pages: Console) -> None:
    """A request for the live part of a page returns that part with the interval of the next request."""
    part = ask(pages, "topics", kb_part="1", kb_viewer="a")
    assert "<html" not in text(part)
    assert 'data-live="/console/topics"' in text(part)
    assert dict(part.headers)["KB-Again-Ms"] == "2000"
    assert text(ask(pages, "nowhere", kb_part="1")) == "There is no such page.\n"


def test_rates(pages: Console) -> None:
    columns = json.loads(ask(pages, "rates?since=0").body)["columns"]
    assert set(columns) >= {"time_ms", "bytes_in", "produce_ms"}
    assert ask(pages, "rates?since=x").status == 400


def test_the_slowest_requests(pages: Console, broker: Broker) -> None:
    broker.request_log.flush()
    page = text(ask(pages, "requests?api=PRODUCE"))
    assert page.count("<b>") == 2
    assert "PRODUCE" in page
    assert "sending" in page


def test_the_slowest_requests_without_a_log() -> None:
    """Without a request log, the page shows the slow requests that the broker keeps in memory."""
    with (
        Broker({**SETTINGS, "kbroker.request.log.topic": ""}) as broker,
        pages_of(broker) as pages,
        wire.Connection(broker.bootstrap_servers) as client,
    ):
        client.ask(wire.create_topic("t", 1))
        wait_for("the request", lambda: "CreateTopics" in text(ask(pages, f"requests?n={time.time()}")))
        assert "User:ANONYMOUS" in text(ask(pages, "xray"))


def test_a_page_that_fails_is_a_sentence(pages: Console, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.context, "topics", SimpleNamespace(all=raising(ZeroDivisionError("secret"))))
    page = ask(pages, "")
    assert page.status == 500
    assert "the broker&#39;s log says why" in text(page)
    assert "secret" not in text(page)


def test_the_files_of_others_have_their_licences() -> None:
    assets = Path(console.__file__).with_name("assets")
    for name, word in (("htmx", "Zero-Clause BSD"), ("uPlot", "MIT License")):
        assert word in (assets / f"{name}.LICENSE").read_text()
        assert list(assets.glob(f"{name}*.min.js"))


# ---------------------------------------------------------------- quotas


@pytest.fixture
def editor(broker: Broker) -> Iterator[Console]:
    with pages_of(broker, TOKEN, may_edit=True) as made:
        yield made
    store = broker.context.quota_entities
    store.alter(
        [Alteration(entity, [QuotaOp(key, None) for key in keys]) for entity, keys in store.find({}, (), False)]
    )


def quotas_of(broker: Broker, **names: str) -> dict[str, float]:
    found = broker.context.quota_entities.find({kind.replace("_", "-"): name for kind, name in names.items()}, (), True)
    return dict(found[0][1]) if found else {}


def test_the_pages_only_show_unless_editing_is_on(pages: Console, broker: Broker) -> None:
    page = ask(pages, "quota?client-id=c")
    assert "kbroker.console.edit" in text(page)
    assert "quota/preview" not in text(page)
    secret = pages._secret.of("")
    for path in ("quota/preview", "quota/apply"):
        fields = {"form_secret": secret, "client-id": "c", "key": "producer_byte_rate", "value": "1MB", "was": ""}
        assert post(pages, path, fields).status == 403
    assert quotas_of(broker, client_id="c") == {}


def test_a_shadow_first_then_promoted(editor: Console, broker: Broker) -> None:
    """A preview changes nothing; its form applies exactly the shown change, and is refused a second time."""
    secret = secret_of(text(ask(editor, "quota?user=alice")))
    fields = {
        "form_secret": secret,
        "user": "alice",
        "key": "producer_byte_rate",
        "value": "1 MiB/s",
        "effect": "shadow",
    }
    shown = post(editor, "quota/preview", fields)
    assert shown.status == 200
    assert '<bdi>shadow.producer_byte_rate</bdi></th><td class="n">none</td><td class="n"><b>1 MiB/s' in text(shown)
    assert quotas_of(broker, user="alice") == {}
    was = was_of(text(shown))
    applied = post(editor, "quota/apply", {**fields, "was": was})
    assert (applied.status, dict(applied.headers)["Location"]) == (303, "/console/quota?user=alice&done=1")
    assert quotas_of(broker, user="alice") == {"shadow.producer_byte_rate": 1048576.0}
    again = post(editor, "quota/apply", {**fields, "was": was})
    assert again.status == 409, "sent once more"
    assert "This has changed since you saw the difference" in text(again)
    assert '<a href="/console/quota?user=alice">Leave it as it is</a>' in text(again) or "Go back" in text(again)
    assert apply(editor, "quota", {**fields, "effect": "promote", "value": ""}).status == 303
    assert quotas_of(broker, user="alice") == {"producer_byte_rate": 1048576.0}
    assert apply(editor, "quota", {**fields, "effect": "remove", "value": ""}).status == 303
    assert quotas_of(broker, user="alice") == {}


def test_only_one_of_the_forms_for_one_state_makes_its_change(editor: Console, broker: Broker) -> None:
    """Forms that were shown the same quota, and are applied at the same moment, do not overwrite each other."""
    secret = secret_of(text(ask(editor, "quota?user=carol")))
    forms = []
    for number in range(6):
        fields = {"form_secret": secret, "user": "carol", "key": "producer_byte_rate", "value": f"{number + 1} MiB/s"}
        shown = post(editor, "quota/preview", {**fields, "effect": "enforce"})
        forms.append({**fields, "effect": "enforce", "was": was_of(text(shown))})
    together = Barrier(len(forms))

    def send(form: dict[str, str]) -> int:
        together.wait(10)
        return post(editor, "quota/apply", form).status

    with ThreadPoolExecutor(len(forms)) as pool:
        assert sorted(pool.map(send, forms)) == [303] + [409] * 5


@pytest.mark.parametrize(
    ("change", "status", "why"),
    [
        ({"value": "1 parsec"}, 400, "expected bytes per second"),
        ({"value": "-5"}, 400, "greater than 0"),
        ({"value": "nan"}, 400, ""),
        ({"value": "0.5"}, 400, "fractional"),
        ({"effect": "promote"}, 400, "to promote"),
        ({"effect": "explode"}, 400, "expected shadow"),
        ({"key": "connection_creation_rate"}, 400, "expected consumer_byte_rate"),
        ({"key": "producer_byte_rate;drop"}, 400, "expected consumer_byte_rate"),
        ({"user": ""}, 400, "Name a user"),
        ({"ip": "10.0.0.1"}, 400, "address has its own quotas"),
        ({"user-default": "1"}, 400, "got both"),
        ({"form_secret": "0" * 64}, 403, "out of date"),
    ],
)  # fmt: skip
def test_bad_changes(editor: Console, broker: Broker, change: dict[str, str], status: int, why: str) -> None:
    secret = secret_of(text(ask(editor, "quota?user=alice")))
    fields = {"form_secret": secret, "user": "alice", "key": "producer_byte_rate", "value": "1MB", "effect": "shadow"}
    for path in ("quota/preview", "quota/apply"):
        response = post(editor, path, {**fields, "was": "", **change})
        assert (response.status, why in text(response)) == (status, True), (path, text(response))
    assert broker.context.quota_entities.find({}, (), False) == []


def test_an_explanation_is_beside_the_form(editor: Console, broker: Broker) -> None:
    store = broker.context.quota_entities
    store.alter([Alteration(QuotaEntity.of({"client-id": MARKUP}), [QuotaOp("producer_byte_rate", 1000.0)])])
    page = text(ask(editor, f"quota?client-id={quote(MARKUP)}"))
    assert "<b>1000 B/s</b> applies, level 7" in page
    assert "<script>alert" not in page
    assert "1 to 1 of 1 entities" in text(ask(editor, "quotas?q=SCRIPT"))
    bad = ask(editor, "explain?ip=nonsense")
    assert (bad.status, "Expected an IP address" in text(bad)) == (400, True)
    assert "words-of-a-stranger" not in text(ask(editor, "quota?user=alice&done=words-of-a-stranger"))


def test_ten_thousand_entities_with_quotas(pages: Console, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    entities = [(QuotaEntity.of({"user": f"u{number:05d}"}), {"producer_byte_rate": 1.0}) for number in range(10_000)]
    monkeypatch.setattr(broker.context, "quota_entities", SimpleNamespace(find=lambda *a: entities))
    page = text(ask(pages, "quotas?page=3"))
    assert page.count('<th scope="row">') == 50
    assert "101 to 150 of 10,000 entities" in page


def test_share_groups(pages: Console, broker: Broker) -> None:
    """The page shows the start offsets, the lag and the members of a share group."""
    groups = broker.context.groups.share_groups
    assert groups.alter_offsets("queue", {"orders": {0: 1}}) == {("orders", 0): None}
    groups.heartbeat(HeartbeatRequest("queue", "sharer", 0, None, ["orders"], "reader", "/127.0.0.1"))
    assert "queue" in text(ask(pages, "groups?q=queue"))
    page = re.sub(r"<[^>]*>|\s+", " ", text(ask(pages, "group?group=queue")))
    assert re.search(r"state +Stable +lag +1 +members +1 +type +share", page), page
    assert re.search(r"orders , 0 +1 +1 +2 +orders , 1 +- +- +0 ", page), page
    assert re.search(r"sharer +reader +/127.0.0.1 +orders: 0 ", page), page


def test_streams_groups(pages: Console, broker: Broker) -> None:
    """The page shows the state of a streams group, and the process and tasks of its member."""
    groups = broker.context.groups.streams_groups
    shape = topology(subtopology("0", ["orders"]))
    request = streams.HeartbeatRequest("app", "m", 0, rebalance_timeout_ms=9000, topology=shape, process_id="process-1")
    request = request._replace(active={}, standby={}, warmup={}, client_id="c", client_host="/127.0.0.1")
    epoch = groups.heartbeat(request).member_epoch
    assert "app" in text(ask(pages, "groups?q=app"))
    wait_for("the tasks", lambda: groups.describe("app").members[0].target.active)
    groups.heartbeat(streams.HeartbeatRequest("app", "m", epoch, client_id="c", client_host="/127.0.0.1"))
    page = re.sub(r"<[^>]*>|\s+", " ", text(ask(pages, "group?group=app")))
    assert re.search(r"state +Stable .*members +1 +type +streams", page), page
    assert re.search(r"m +process-1 +c +/127.0.0.1 +active tasks of 0: 0, 1 ", page), page
