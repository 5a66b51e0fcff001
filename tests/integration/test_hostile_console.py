"""Hostile names, records and addresses in the console: clear errors and bounded costs."""

import logging
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.broker import Broker
from kbroker.client.cluster import Cluster
from kbroker.client.groups import Groups, _classic
from kbroker.client.transactional_producer import TransactionalProducer
from kbroker.common.http_messages import HttpRequest
from kbroker.common.quotas import QuotaEntity
from kbroker.console.app import Console
from kbroker.console.record_reader import HEADERS, LogRecord
from kbroker.console.views import groups, messages, quotas
from kbroker.coordinator.classic_group import GroupState
from kbroker.coordinator.group_coordinator import ListedGroup
from kbroker.decoders.record_text import LIST_BYTES, WHOLE_BYTES, Shown, shown
from kbroker.metadata.topic_rules import NewTopic
from kbroker.observe.http_access import HttpAccess
from kbroker.observe.mounted_pages import MountedPages
from kbroker.observe.xray import KEY_CHARACTERS, _words
from kbroker.protocol import codec
from tests.support import wire
from tests.support.broker import wait_for
from tests.support.console import SETTINGS, ask, pages_of
from tests.support.fixtures import fixture_of

LOGGED = {**SETTINGS, "kbroker.request.log.topic": "__request_log"}
broker = fixture_of(Broker, LOGGED, topics={"orders": 1}, scope="module")


@pytest.fixture
def pages(broker: Broker) -> Iterator[Console]:
    with pages_of(broker) as made:
        yield made


@pytest.mark.parametrize(
    "name",
    [
        "x" * 300 + ".js",
        "%0A" * 300 + ".css",
        "%00.js",
        "%ED%A0%80.js",
        "..%2Fapp.js",
        "htmx.min.js%00.js",
        "..%2Fassets%2Fconsole.css",
    ],
)
def test_a_file_that_cannot_be_is_not_found(pages: Console, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """A client without a token can neither fill the log with failures nor write lines into it."""
    assert ask(pages, f"assets/{name}", "10.1.2.3").status == 404
    assert caplog.records == []


def test_names_that_are_not_utf_8() -> None:
    """A group and a transactional id with a name that is not UTF-8 are listed without their own page."""
    with (
        Broker({**SETTINGS, "transaction.state.log.num.partitions": 1}) as broker,
        Cluster(broker.bootstrap_servers, client_id="c\udcff") as cluster,
        pages_of(broker) as pages,
    ):
        broker.context.topics.create(NewTopic("orders", 1))
        Groups(cluster).commit("g\udcff", {("orders", 0): 0})
        TransactionalProducer(cluster, "t\udcff").init_transactions()
        for target, name in (("groups", "g"), ("transactions", "t")):
            response = ask(pages, target)
            assert response.status == 200
            assert f"{name}\\udcff" in response.body.decode()
            assert "or not UTF-8" in response.body.decode()


# Replacement for the coordinator's offsets: no group has committed offsets.
NO_OFFSETS = SimpleNamespace(fetch=lambda group_id: SimpleNamespace(committed={}))


def test_the_log_names_a_page_in_one_line(
    pages: Console, broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pages, "_respond", lambda request: 1 // 0)
    with caplog.at_level(logging.ERROR):
        assert ask(pages, "x%0A%1B[31mERROR all is lost").status == 500
    assert "x\\u000a\\u001b[31mERROR" in caplog.records[0].getMessage()


@pytest.mark.parametrize("page", ["produce?topic=orders", "throughput", "quota?user=u", "sign-in"])
def test_a_page_without_a_live_part_is_whole(pages: Console, page: str) -> None:
    """A page without a live part is sent completely, even if only its live part is requested."""
    found = ask(pages, page, kb_part="1")
    assert (found.status, b"<html" in found.body) == (200, True)


def test_a_long_header_is_cut_before_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header's name is truncated before it is escaped, which would take half a minute for 64 MB."""
    longest = 0

    def look(text: str) -> str:
        nonlocal longest
        longest = max(longest, len(text))
        return text

    monkeypatch.setattr(messages, "safe_text", look)
    header = ("é" * 100_000).encode(), b"v"
    shown_headers, _ = messages._headers(LogRecord(0, 0, None, None, (header,), 1, -1, -1), is_alone=False)
    assert len(shown_headers[0][0]) == messages.HEADER_NAME_CHARACTERS
    assert longest <= messages.HEADER_NAME_CHARACTERS


def test_a_list_shows_the_first_headers_of_a_record() -> None:
    """A list of records shows only the first headers of a record, up to a number of characters."""
    headers = tuple((b"\x01" * 200, b"\x1b" * 200) for _ in range(HEADERS))
    record = LogRecord(0, 0, None, None, headers, 60, -1, -1)
    listed, more = messages._headers(record, is_alone=False)
    assert sum(len(name) + len(text) for name, text in listed) < messages.LIST_HEADERS_CHARACTERS + 1000
    assert len(listed) + more == 60
    alone, more = messages._headers(record, is_alone=True)
    assert (len(alone), more) == (HEADERS, 10)


def test_a_message_alone_is_looked_at_once(pages: Console, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of one message converts its key and value once."""
    limits: list[int] = []

    def look(data: bytes | None, limit_bytes: int = LIST_BYTES, size_bytes: int | None = None) -> Shown:
        limits.append(limit_bytes)
        return shown(data, limit_bytes, size_bytes)

    broker.context.topics.create(NewTopic("alone", 1))
    with wire.Connection(broker.bootstrap_servers) as client:
        client.ask(wire.produce("alone", 0, wire.batch([b"v" * WHOLE_BYTES + b"w"])))
    monkeypatch.setattr(messages, "shown", look)
    page = ask(pages, "message?topic=alone&offset=0").body
    assert page.count(b"v" * WHOLE_BYTES) == 1
    assert b"vw" not in page
    assert limits == [WHOLE_BYTES, WHOLE_BYTES]


def assignment(topic: str, count: int) -> bytes:
    rows: list[dict[str, Any]] = [{"Topic": topic, "Partitions": [0]} for _ in range(count)]
    return codec.encode_versioned("ConsumerProtocolAssignment", 0, {"AssignedPartitions": rows, "UserData": None})


def test_a_group_whose_members_name_the_longest_topics(
    pages: Console, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of a group is less than 1 MiB, even with the longest assignments that a leader may send."""
    given = [assignment("t" * 32_767, 7), assignment("t", groups.ASSIGNMENT_BYTES)]
    names = {"MemberId": "m", "GroupInstanceId": None, "ClientId": "c", "ClientHost": "h"}
    members = [{**names, "MemberAssignment": given[i % 2]} for i in range(groups.MEMBERS + 5)]
    row = {"GroupId": "g", "GroupState": "Stable", "ProtocolType": "consumer", "ProtocolData": "x", "Members": members}
    described = _classic(row, 1, groups.ASSIGNMENT_BYTES)
    monkeypatch.setattr(Groups, "describe", lambda self, name: described)
    page = ask(pages, "group?group=g")
    assert page.status == 200
    assert b"too many to be shown" in page.body
    assert b"5 more are not shown" in page.body
    assert len(page.body) < 1 << 20


def test_the_key_of_a_waiting_operation_is_cut() -> None:
    """Keys are truncated, so that 500 groups with the longest ids do not make an output of 32 MB."""
    assert _words(("g" * 32_767, 5)) == ["g" * KEY_CHARACTERS, "5"]
    assert _words("g" * 32_767) == ["g" * KEY_CHARACTERS]


def test_what_waits_is_named_by_its_key(pages: Console, broker: Broker) -> None:
    """A delayed operation is shown with topic and partition, as `kbroker xray` shows it."""
    broker.context.topics.create(NewTopic("waited-for", 1))
    with wire.Connection(broker.bootstrap_servers) as client:
        client.send(wire.fetch("waited-for", max_wait_ms=30_000))
        wait_for("the Fetch waits", lambda: broker.parts.native_apis.waiting_fetches > 0)
        page = ask(pages, "xray").body.decode()
    assert "<bdi>waited-for-0</bdi>" in page


def test_a_page_that_asks_while_the_broker_stops(caplog: pytest.LogCaptureFixture) -> None:
    """A request during the stop of the broker receives status 503 and leaves no traceback in the log."""
    mounted = MountedPages("/console", lambda: Console.of_broker(SimpleNamespace(), HttpAccess(None, VirtualClock(0))))  # type: ignore[arg-type]
    mounted.close()
    with caplog.at_level(logging.DEBUG):
        response = mounted.respond(HttpRequest("GET", "/console", "", {}, "127.0.0.1", b""))
    assert (response.status, response.body) == (503, b"The broker stops.\n")
    assert caplog.records == []


def test_a_chart_has_old_windows_where_they_belong() -> None:
    """A window of the past is drawn at its time, and not at all when it is too old."""
    counter = {"sample_ms": 1000, "limit": 10.0, "samples": [{"start_ms": 8_500, "value": 40.0}]}
    just_now, before, long_ago = (quotas._chart("request_percentage", counter, now) for now in (9_000, 11_000, 60_000))
    assert just_now is not None
    assert before is not None
    assert long_ago is not None
    assert [(round(x), height, text) for x, height, text in just_now.bars] == [(91, 100.0, "40 %")]
    assert [round(x) for x, _, _ in before.bars] == [73]
    assert long_ago == quotas.Chart([], 0.0)


def test_a_name_that_is_too_long_for_an_address_has_no_link(
    pages: Console, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is too long for a URL, in which each byte takes three characters, is shown without a link."""
    names = ["\u0439" * 16_000, "\u0439" * 9000]
    entities = [(QuotaEntity.of({"client-id": name}), {"producer_byte_rate": 1.0}) for name in names]
    monkeypatch.setattr(broker.context, "quota_entities", SimpleNamespace(find=lambda *a: entities))
    coordinator = SimpleNamespace(
        list_groups=lambda: [ListedGroup(name, "consumer", GroupState.EMPTY, "classic") for name in names],
        offsets=NO_OFFSETS,
    )
    monkeypatch.setattr(broker.context.group_service, "started", SimpleNamespace(coordinator=coordinator))
    for page in ("quotas", "groups"):
        shown = ask(pages, page).body.decode()
        assert shown.count("too long a name for a page") == 1
        links = re.findall(rf'href="(/console/{page[:-1]}\?[^"]+)"', shown)
        assert [len(link) < 65_000 for link in links] == [True]
