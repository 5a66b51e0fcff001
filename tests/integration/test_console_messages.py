"""Console pages of messages: searches, decoders, files, production of records, safety against markup."""

import io
import json
import logging
import re
import struct
import time
from collections.abc import Iterator
from html import unescape
from urllib.parse import quote, urlencode

import pyarrow.parquet
import pytest

from kbroker.broker import Broker
from kbroker.client.cluster import Cluster
from kbroker.client.consumer import Consumer, Record
from kbroker.client.producer import Producer
from kbroker.console.app import Console
from kbroker.decoders.by_schema import BY_SCHEMA
from kbroker.decoders.decoders import NAMES
from kbroker.metadata.topic_rules import NewTopic
from tests.support.console import SETTINGS, apply, ask, hidden_fields, pages_of, post, secret_of, served

MARKUP = "<img src=x onerror=alert(1)>\u202e"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with served(SETTINGS) as made:
        for name, partitions in (("orders", 2), ("numbers", 1), ("empty", 1), ("markup", 1), ("made", 2), ("wide", 3)):
            made.context.topics.create(NewTopic(name, partitions))
        with Cluster(made.bootstrap_servers) as cluster, Producer(cluster) as producer:
            for n in range(1000):
                value = json.dumps({"n": n, "amount": n / 4, "who": "Zoë" if n % 100 == 0 else "x"}).encode()
                headers = [("type", b"even" if n % 2 == 0 else b"odd")]
                producer.send("orders", value, b"k%d" % n, partition=n % 2, headers=headers, timestamp_ms=1000 * n)
            producer.send("numbers", struct.pack(">q", -5), struct.pack(">i", 7))
            text = MARKUP.encode()
            producer.send("markup", text, text, headers=[(MARKUP, text)])
            producer.send("markup", json.dumps({MARKUP: MARKUP}).encode(), None)
        yield made


@pytest.fixture(scope="module")
def pages(broker: Broker) -> Iterator[Console]:
    with pages_of(broker, may_edit=True) as made:
        yield made


@pytest.fixture(autouse=True)
def _whole_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the time limit of a step, so that it examines as many records on a slow machine."""
    monkeypatch.setattr("kbroker.console.record_scan.STEP_MS", 60_000)


def page(pages: Console, status: int = 200, **query: object) -> str:
    response = ask(pages, f"messages?{urlencode(query)}")
    assert response.status == status, response.body.decode()
    return response.body.decode()


def numbers(text: str) -> list[int]:
    """Return the field n of each record of a page."""
    return [int(n) for n in re.findall(r"&#34;n&#34;: (\d+)", text.partition('id="found"')[2] or text)]


def link(text: str, name: str) -> str:
    found = re.search(rf'<a [^>]*href="([^"]*)"[^>]*>{name}</a>', text)
    assert found is not None, name
    return unescape(found[1]).removeprefix("/console/")


def test_all_partitions_in_the_order_of_time(pages: Console) -> None:
    latest = page(pages, topic="orders", count=5)
    assert numbers(latest) == [995, 996, 997, 998, 999]
    older = ask(pages, link(latest, "Older")).body.decode()
    assert numbers(older) == [990, 991, 992, 993, 994]
    assert numbers(ask(pages, link(older, "Newer")).body.decode()) == [995, 996, 997, 998, 999]
    assert numbers(page(pages, topic="orders", count=3, time="1970-01-01T00:01:40")) == [100, 101, 102]
    assert numbers(page(pages, topic="orders", count=3, partition=1, offset=0)) == [1, 3, 5]


def test_batches_that_one_request_cannot_bring(pages: Console, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that a request for several partitions cannot return is read by a request for its partition."""
    monkeypatch.setattr("kbroker.console.wire_partition.AHEAD_BYTES", 3000)
    with Cluster(broker.bootstrap_servers) as cluster, Producer(cluster) as producer:
        for n in range(6):
            value = json.dumps({"n": n, "text": "x" * 5000}).encode()
            producer.send("wide", value, None, partition=n % 3, timestamp_ms=n)
    assert numbers(page(pages, topic="wide")) == list(range(6))


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"key": "k99"}, [99, 990, 991]),
        ({"value": "Zoë", "offset": "0"}, None),
        ({"header": "type=even"}, [0, 2, 4]),
        ({"filter": "value.amount > `249` && headers.type == 'odd'"}, [997, 999]),
        ({"filter": "value.who == 'Zoë'", "until": "1970-01-01T00:02:00"}, [0, 100]),
        ({"value": "nothing"}, []),
    ],
)
def test_filters(pages: Console, query: dict[str, str], wanted: list[int] | None) -> None:
    text = page(pages, 200, **{"topic": "orders", "count": "3", "time": "1970-01-01T00:00:00", **query})
    if wanted is None:  # an offset requires one partition
        assert "Partition" not in text.partition('id="found"')[2]
        assert "No" not in text.partition('id="looked"')[2].partition("</p>")[0]
        return
    assert numbers(text) == wanted
    assert "Examined " in text


def test_a_step_says_how_far_it_has_looked(pages: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step reports its progress and links to the next, so that every record is examined once."""
    monkeypatch.setattr("kbroker.console.record_scan.STEP_RECORDS", 200)
    monkeypatch.setattr("kbroker.console.record_scan.CHUNK", 100)
    text = page(pages, topic="orders", partition=1, offset=0, value='"n": 999')
    looked, where = 0, ""
    for _ in range(10):
        found = re.search(r"Examined (\d+) records, ([^.]*)\. Matches: (\d)", text)
        assert found is not None
        looked, where = looked + int(found[1]), found[2]
        if "Look further" not in text:
            break
        assert re.fullmatch(r"up to offset \d+, \d+ % of the topic", where)
        text = ask(pages, link(text, "Look further")).body.decode()
    assert (looked, numbers(text), where) == (500, [999], "up to the end")


def test_new_records_are_followed(pages: Console, broker: Broker) -> None:
    first = page(pages, topic="made", live=1)
    more = re.search(r'data-more="/console/([^"]*)"', first)
    assert more is not None
    with Cluster(broker.bootstrap_servers) as cluster, Producer(cluster) as producer:
        producer.send("made", b'{"n": 7}', None)
    part = ask(pages, unescape(more[1]), kb_part="1").body.decode()
    assert numbers(part) == [7]
    assert "<html" not in part
    again = re.search(r'data-more="/console/([^"]*)"', part)
    assert again is not None
    assert numbers(ask(pages, unescape(again[1]), kb_part="1").body.decode()) == []


def test_decoders(pages: Console) -> None:
    text = page(pages, topic="numbers", kd="int32", vd="int64")
    assert ">7</pre>" in text
    assert ">-5</pre>" in text
    assert "value: int64, 8 B" in text
    wrong = page(pages, topic="numbers", vd="json")
    assert "The value is shown as it is: not JSON" in wrong
    assert "value: binary, 8 B" in wrong
    assert numbers(page(pages, topic="numbers", kd="int32", vd="int64", filter="value == `-6`")) == []
    alone = ask(pages, "message?topic=numbers&partition=0&offset=0&vd=int64").body.decode()
    assert ">-5</pre>" in alone
    own = page(pages, topic="orders", count=1, vd="hex")
    assert "value: hex" in own


def test_every_decoder_can_be_chosen(pages: Console) -> None:
    for name in NAMES:
        needs_registry = name in BY_SCHEMA
        page(pages, 400 if needs_registry else 200, topic="orders", vd=name, kd=name)


def test_files(pages: Console) -> None:
    lines = ask(pages, "records?topic=orders&form=jsonl&filter=" + quote("value.who == 'Zoë'"))
    documents = [json.loads(line) for line in lines.body.splitlines()]
    assert [one["value"]["n"] for one in documents] == list(range(0, 1000, 100))
    assert ("Content-Disposition", 'attachment; filename="orders.jsonl"') in lines.headers
    raw = ask(pages, "records?topic=orders&form=jsonl&partition=0&offset=3")
    assert json.loads(raw.body.splitlines()[0])["value"].startswith('{"n": 6')
    step = json.loads(ask(pages, "records?topic=orders&form=jsonl&part=1&partition=0&offset=3").body)
    assert (step["text"].encode(), step["records"], step["more"]) == (raw.body, 497, None)
    table = pyarrow.parquet.read_table(io.BytesIO(ask(pages, "records?topic=orders&form=parquet").body))
    assert table.num_rows == 1000
    row = table.to_pylist()[3]
    assert (row["partition"], row["offset"], row["key"], row["headers"]) == (
        *(1, 1, b"k3"),
        [{"name": "type", "value": b"odd"}],
    )
    assert ask(pages, "records?topic=orders&form=csv").status == 400


def test_a_file_has_long_values_whole(pages: Console, broker: Broker) -> None:
    """A page decodes the beginning of a long value; a file has the whole value."""
    broker.context.topics.create(NewTopic("long", 1))
    value = json.dumps({"n": 1, "text": "x" * (3 << 20)})
    with Cluster(broker.bootstrap_servers) as cluster, Producer(cluster, codec="gzip") as producer:
        producer.send("long", value.encode(), None)
    lines = ask(pages, "records?topic=long&form=jsonl&vd=json").body
    assert json.loads(lines)["value"] == value
    table = pyarrow.parquet.read_table(io.BytesIO(ask(pages, "records?topic=long&form=parquet").body))
    assert table.to_pylist()[0]["value"] == value.encode()


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"filter": "value["}, 400),
        ({"filter": "valeu > `1`"}, 400),
        ({"filter": "x" * 2000}, 400),
        ({"vd": "xml"}, 400),
        ({"at": "1-2-3"}, 400),
        ({"before": "0"}, 400),
        ({"partition": "9"}, 404),
        ({"at": "7-1.0-99999999999999999"}, 200),
        ({"key": "\x00<i>"}, 200),
    ],
)
def test_wrong_parameters_are_named(pages: Console, query: dict[str, str], status: int) -> None:
    page(pages, status, topic="orders", **query)


def test_markup_in_every_field(pages: Console) -> None:
    """Neither records nor parameters can add elements to a page or reverse its text."""
    plain: dict[str, str] = dict.fromkeys(("key", "value", "header"), MARKUP)
    for target in (
        *(
            "messages?topic=markup",
            "message?topic=markup&partition=0&offset=0",
            "messages?topic=markup&vd=text&kd=text",
        ),
        f"messages?{urlencode({'topic': 'markup', **plain})}",
        *(
            f"messages?{urlencode({'topic': 'markup', name: MARKUP})}"
            for name in ("filter", "kd", "at", "time", "until")
        ),
        f"produce?{urlencode({'topic': 'markup', **plain, 'headers': MARKUP, 'partition': MARKUP, 'repeat': MARKUP})}",
    ):
        text = ask(pages, target).body.decode()
        assert "<img" not in text
        assert "\u202e" not in re.sub(
            r'value="[^"]*"|<textarea.*?</textarea>|href="[^"]*"', "", text, flags=re.DOTALL
        ), target
    shown = post(pages, "produce/preview", {**fields(pages), "topic": "markup", "key": MARKUP, "value": MARKUP,
                                            "headers": f"{MARKUP}={MARKUP}"})  # fmt: skip
    assert shown.status == 200
    assert b"<img" not in shown.body


# ---------------------------------------------------------------- producing


def fields(pages: Console) -> dict[str, str]:
    return {"form_secret": secret_of(ask(pages, "produce?topic=made").body.decode()), "topic": "made"}


def read(broker: Broker, topic: str, partition: int, offset: int) -> list[Record]:
    with Cluster(broker.bootstrap_servers) as cluster:
        return Consumer(cluster, {(topic, partition): offset}).poll()


def test_a_record_with_headers(pages: Console, broker: Broker) -> None:
    end = broker.context.topics.get("made").partitions[1].high_watermark
    given = {"partition": "1", "key": "0000002a", "key_as": "hex", "value": '{"a": 1.50}', "value_as": "json",
             "headers": "type=a=b\r\nnone\r\n", "repeat": "3"}  # fmt: skip
    before = time.time() * 1000
    done = apply(pages, "produce", {**fields(pages), **given})
    assert (done.status, dict(done.headers)["Location"]) == (303, "/console/messages?topic=made&partition=1&done=1")
    found = read(broker, "made", 1, end)
    assert [(one.key, one.value, one.headers) for one in found] == 3 * [
        (b"\0\0\0*", b'{"a": 1.50}', [("type", b"a=b"), ("none", None)])
    ]
    assert abs(found[0].timestamp_ms - before) < 60_000


def test_a_form_produces_once_and_its_records_are_not_logged(
    pages: Console, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """A second submission of a form produces nothing, and the log has no keys, values or headers."""
    end = broker.context.topics.get("made").partitions[1].high_watermark
    given = {"partition": "1", "key": "private", "value": "private", "headers": "name=private"}
    shown = hidden_fields(post(pages, "produce/preview", {**fields(pages), **given}).body.decode())
    with caplog.at_level(logging.INFO, "kbroker.console.changes"):
        assert post(pages, "produce/apply", shown).status == 303
    again = post(pages, "produce/apply", shown)
    assert (again.status, b"This form has made its change already." in again.body) == (409, True)
    assert len(read(broker, "made", 1, end)) == 1
    assert "Produce 1 record to made (records: none -> 1; partition: none -> 1; bytes" in caplog.text
    assert "private" not in caplog.text
    assert post(pages, "produce/apply", hidden_fields(again.body.decode())).status == 303, "another form"
    assert len(read(broker, "made", 1, end)) == 2


def test_lines_and_a_tombstone(pages: Console, broker: Broker) -> None:
    end = broker.context.topics.get("made").partitions[0].high_watermark
    apply(
        pages, "produce", {**fields(pages), "partition": "0", "key_null": "1", "value": "a\r\nb\r\n\r\n", "lines": "1"}
    )
    apply(pages, "produce", {**fields(pages), "partition": "0", "key": "gone", "value_null": "1"})
    assert [(one.key, one.value) for one in read(broker, "made", 0, end)] == [
        *((None, b"a"), (None, b"b"), (b"gone", None))
    ]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"value": "{", "value_as": "json"}, "The value: &#39;{&#39; is not json"),
        ({"value": "x", "value_as": "int32"}, "is not int32"),
        ({"value": "99999999999", "value_as": "int32"}, "is not int32"),
        ({"key": "zz", "key_as": "hex"}, "The key: &#39;zz&#39; is not hex"),
        ({"partition": "7"}, "partition is &#39;7&#39;; expected a whole number from 0 to 1"),
        ({"repeat": "100000"}, "repeat is"),
        ({"lines": "1", "value": "\r\n"}, "has no lines"),
        ({"key": "k", "key_null": "1"}, "The key has text, and null is checked"),
        ({"value": "v", "value_null": "1"}, "The value has text, and null is checked"),
        ({"headers": "a=b\n" * 51}, "at most 50 headers"),
        ({"value": "x" * 30_000, "repeat": "1000"}, "expected at most 4.0 MiB"),
        ({"headers": "a=" + "x" * 30_000, "repeat": "1000"}, "expected at most 4.0 MiB"),
        ({"value": "x\n" * 11, "lines": "1", "repeat": "1000"}, "These are 11,000 records; expected at most 10,000"),
        ({"value_as": "xml"}, "expected an encoder of text, json"),
    ],
)
def test_what_cannot_be_produced(pages: Console, given: dict[str, str], reason: str) -> None:
    """The form is shown again with its fields and the reason; nothing is sent."""
    response = post(pages, "produce/preview", {**fields(pages), **given})
    assert response.status == 400
    assert reason in response.body.decode()
    assert '<form method="post"' in response.body.decode()


def test_a_first_line_end_is_shown_again(pages: Console) -> None:
    """A browser drops the line end at the begin of a text area, and with it that of a value that is shown again."""
    response = post(pages, "produce/preview", {**fields(pages), "value": "\nx", "repeat": "0"})
    assert ">\n\nx</textarea>" in response.body.decode()


def test_pages_that_only_show(broker: Broker) -> None:
    with pages_of(broker) as looking:
        assert "kbroker.console.edit</code> is off" in ask(looking, "produce?topic=made").body.decode()
        assert post(looking, "produce/apply", {"topic": "made", "value": "x"}).status == 403
