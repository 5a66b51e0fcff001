"""Records of finished requests: their fields, requests without a record, and counted losses."""

import datetime
import json
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.request_log import COLUMNS, QUOTA_TYPES, UPDATE, VERDICT, Column
from kbroker.network.connections.refusal import Refusal
from kbroker.request_log.service import RequestLog, kafka_api_name
from tests.native.request_log_samples import SampleConnection
from tests.support.fixtures import fixture_of
from tests.support.request_log import START_MS, Bench

PRODUCE, FETCH, REQUEST, MUTATION, CONNECTION = range(5)


def names_in(value: Any, prefix: str = "") -> set[str]:
    """Return the dotted names of an object's values; a list of objects counts as one value."""
    if not isinstance(value, dict):
        return {prefix}
    return {name for key, item in value.items() for name in names_in(item, f"{prefix}.{key}" if prefix else key)}


def json_names(columns: tuple[Column, ...]) -> set[str]:
    return {column.json for column in columns}


bench = fixture_of(Bench)


def test_every_field_of_a_record_is_what_happened(bench: Bench) -> None:
    """Times are differences of timestamps in milliseconds; the record's time is the end of sending, in UTC."""
    at = bench.now_ns()
    one = bench.connect(local_port=9092, remote_host=b"10.0.0.9", remote_port=51000, processor_id=2, index=4)
    one.record(
        api_key=0, api_version=11, correlation_id=42, client_id=b"app", start_ns=at, dequeue_ns=at + 1_000_000,
        local_done_ns=at + 1_250_000, response_ready_ns=at + 3_250_000, response_dequeue_ns=at + 3_260_000,
        response_sent_ns=at + 4_000_999, network_ns=77_000, request_bytes=1000, response_bytes=60, throttle_ms=12,
        errors=[(0, 3), (87, 2), (3, 1)],
        updates=[(PRODUCE, b"alice", b"app", 5, 1_767_323_045_127, 1000.0, True)],
        verdicts=[(PRODUCE, b"alice", b"app", 1, 1_767_323_045_127, 12.5, 10.0, 11000, 2750, 12, False)],
        shadows=[(PRODUCE, b"alice", b"", 3, 1_767_323_045_127, 12.5, 4.0, 11000, 9000, 9000, False)],
        transactional_id=b"billing-1", appended=[(b"orders", 3, 70, 79)],
    )  # fmt: skip
    (record,) = bench.lines()
    assert record == {
        "version": 5,
        "time": "2026-01-02T03:04:05.127000Z",
        "broker": 7,
        "sequence": 1,
        "requestHeader": {
            "requestApiKey": 0, "requestApiVersion": 11, "correlationId": 42, "clientId": "app",
            "requestApiKeyName": "PRODUCE",
        },
        "request": {"transactionalId": "billing-1"},
        "connection": "127.0.0.1:9092-10.0.0.9:51000-2-4",
        "address": "10.0.0.9",
        "securityProtocol": "PLAINTEXT",
        "principal": "User:alice",
        "listener": "PLAINTEXT",
        "clientInformation": {"softwareName": "unknown", "softwareVersion": "unknown"},
        "totalTimeMs": 4.0,
        "requestQueueTimeMs": 1.0,
        "localTimeMs": 0.25,
        "remoteTimeMs": 2.0,
        "throttleTimeMs": 12,
        "responseQueueTimeMs": 0.01,
        "sendTimeMs": 0.74,
        "networkTimeMs": 0.077,
        "requestBytes": 1000,
        "responseBytes": 60,
        "errorCode": 87,
        "errorCount": 2,
        "sampling": 1.0,
        "repeated": 1,
        "quota": {
            "verdicts": [{
                "quotaType": "Produce", "user": "alice", "clientId": "app", "level": 1, "observed": 12.5,
                "limit": 10.0, "windowMs": 11000, "delayAskedMs": 2750, "delayServedMs": 12, "refused": False,
                "sequence": 0, "timeMs": 1_767_323_045_127,
            }],
            "updates": [{
                "quotaType": "Produce", "user": "alice", "clientId": "app", "sequence": 5,
                "timeMs": 1_767_323_045_127, "value": 1000.0, "checked": True,
            }],
            "shadowVerdicts": [{
                "quotaType": "Produce", "user": "alice", "clientId": "", "level": 3, "observed": 12.5,
                "limit": 4.0, "windowMs": 11000, "delayAskedMs": 9000, "delayServedMs": 9000, "refused": False,
                "sequence": 0, "timeMs": 1_767_323_045_127,
            }],
        },
        "response": {"appended": [{"topic": "orders", "partition": 3, "firstOffset": 70, "lastOffset": 79}]},
    }  # fmt: skip
    of_refusals = {"refusal.reason", "refusal.requestApiKey", "refusal.requestApiVersion"}
    assert names_in(record) - {"version"} == json_names(COLUMNS) - of_refusals
    assert names_in(record["quota"]["updates"][0]) == json_names(UPDATE)
    assert names_in(record["quota"]["verdicts"][0]) == json_names(VERDICT) - {"ip"}


def test_steps_that_were_not_taken_took_no_time(bench: Bench) -> None:
    """A request that is completed at once has intermediate timestamps of 0."""
    at = bench.now_ns()
    bench.connect().record(start_ns=at, dequeue_ns=at + 5_000, response_sent_ns=at + 9_000)
    (record,) = bench.lines()
    times = ("requestQueueTimeMs", "localTimeMs", "remoteTimeMs", "responseQueueTimeMs", "sendTimeMs", "totalTimeMs")
    assert [record[name] for name in times] == [0.005, 0.0, 0.0, 0.0, 0.004, 0.009]


def test_two_quotas_at_once_leave_two_verdicts(bench: Bench) -> None:
    """Each verdict names its counter, and only the longer delay is served."""
    bench.connect().record(
        throttle_ms=300,
        verdicts=[
            (FETCH, b"alice", b"", 3, 1, 2.0, 1.0, 1000, 200, 0, False),
            (REQUEST, b"", b"app", 7, 1, 3.5, 2.5, 1000, 400, 300, False),
        ],
    )
    (record,) = bench.lines()
    found = [
        (v["quotaType"], v["user"], v["clientId"], v["level"], v["delayAskedMs"], v["delayServedMs"])
        for v in record["quota"]["verdicts"]
    ]
    assert found == [("Fetch", "alice", "", 3, 200, 0), ("Request", "", "app", 7, 400, 300)]


@pytest.mark.parametrize("value", [1 / 3, -1e-7, 2.0**63, 1e300, 123456789.125, -4096.0, 5e-324])
def test_values_read_back_as_the_same_number(bench: Bench, value: float) -> None:
    """Recorded values are exact, as a replay requires."""
    bench.connect().record(updates=[(REQUEST, b"a", b"b", 1, 2, value, False)])
    (record,) = bench.lines()
    assert record["quota"]["updates"][0]["value"] == value


EDGES = [0, 9, 10, 99, 100, 999, 1000, 999_999, 10**6, 10**9 - 1, 10**9, 10**12, 10**18 + 7, 2**63 - 1]


@pytest.mark.parametrize("value", [*EDGES, -1, -1000, -(2**63)])
def test_whole_numbers_have_all_their_digits(bench: Bench, value: int) -> None:
    bench.connect().record(updates=[(REQUEST, b"a", b"b", value, value, 1.0, False)], request_bytes=value)
    (record,) = bench.lines()
    (update,) = record["quota"]["updates"]
    assert (update["sequence"], update["timeMs"], record["requestBytes"]) == (value, value, value)


@pytest.mark.parametrize("us", [0, 1, 10, 999, 1000, 1001, 59_999, 60_000, 999_999, 1_000_000, 86_399_999_999])
def test_a_time_is_its_own_second_and_fraction(bench: Bench, us: int) -> None:
    """Each record has its own time, even if the previous record has a later time."""
    start = bench.now_ns()
    one = bench.connect()
    for after in (us, 5, us):
        one.record(start_ns=start, dequeue_ns=start, response_sent_ns=start + after * 1000)
    begin = datetime.datetime.fromtimestamp(START_MS // 1000, datetime.timezone.utc).replace(microsecond=123_000)
    times = [(begin + datetime.timedelta(microseconds=after)) for after in (us, 5, us)]
    found = bench.lines()
    assert [r["time"] for r in found] == [f"{time:%Y-%m-%dT%H:%M:%S.%f}Z" for time in times]
    assert [r["totalTimeMs"] for r in found] == [us / 1000, 0.005, us / 1000]


def test_percents_of_time_read_back_as_the_same_number(bench: Bench) -> None:
    """A percentage of a thread for any number of nanoseconds is exact and has the shortest form."""
    one = bench.connect()
    spans_ns = [*range(1, 400, 7), *range(999, 60_000, 613), 10**6, 10**7 + 1, 123_456_789, 10**12 + 7, 10**15 - 1]
    for ns in spans_ns:
        one.record(updates=[(REQUEST, b"a", b"b", 1, 2, ns * (100.0 / 10**9), False)])
    while not bench.drain.drain(bench.form, 1 << 20, True):
        pass
    lines = bench.form.take_lines().decode().splitlines()
    assert [json.loads(line)["quota"]["updates"][0]["value"] for line in lines] == [
        n * (100.0 / 10**9) for n in spans_ns
    ]
    texts = [line.partition('"value":')[2].partition(",")[0] for line in lines]
    assert all(len(text) <= len(repr(float(text))) for text in texts)


def test_what_is_no_number_is_null(bench: Bench) -> None:
    """A value that JSON cannot represent is null."""
    bench.connect().record(verdicts=[(PRODUCE, b"", b"", 0, 1, float("nan"), float("inf"), 0, 1, 1, False)])
    (record,) = bench.lines()
    assert (record["quota"]["verdicts"][0]["observed"], record["quota"]["verdicts"][0]["limit"]) == (None, None)


HOSTILE = [
    b'"}],"quota":{}', b"\\u0000\\", bytes(range(32)), b"\x7f\x80\xff", b"\xc0\xaf", b"\xe2\x82", b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80", "grüße 🎉\u2028\u2029\x85\u202a".encode(), b"a" * 32767, b"\xff" * 9000,
    b"\xf0\x9f\x8e", b"\xe0\x80\x80x", b"",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_stay_names(bench: Bench, name: bytes) -> None:
    """Any bytes in a name give one valid line, decoded like Python's "replace" error handler."""
    one = bench.connect(b"User:" + name.replace(b"\0", b""))
    one.record(
        client_id=name, transactional_id=name, updates=[(PRODUCE, name, name, 1, 2, 3.0, True)],
        verdicts=[(PRODUCE, name, name, 1, 1, 2.0, 1.0, 1, 1, 1, False)],
    )  # fmt: skip
    (record,) = bench.lines()
    text = name.decode("utf-8", "replace")
    assert record["requestHeader"]["clientId"] == text
    assert record["principal"] == "User:" + text.replace("\0", "")
    kept = record.get("request", {"transactionalId": ""})["transactionalId"]
    assert kept == (text if len(name) <= 1024 else text[: len(kept)])
    for note in (*record["quota"]["updates"], *record["quota"]["verdicts"]):
        assert (note["user"], note["clientId"]) == (text, text)


def test_a_request_without_transactional_id_says_nothing_of_one(bench: Bench) -> None:
    """The field is omitted rather than empty, because most requests have no transactional id."""
    bench.connect().record()
    bench.connect().record(transactional_id=b"")
    assert ["request" in record for record in bench.lines()] == [False, False]


@pytest.mark.parametrize(("character", "kept"), [("a", 1024), ("ü", 512), ("€", 341), ("🎉", 256)])
def test_a_long_transactional_id_is_cut_between_two_characters(bench: Bench, character: str, kept: int) -> None:
    """A transactional id is truncated to 1,024 bytes at the end of a character, because clients choose it."""
    one = bench.connect()
    one.record(client_id=b"before", transactional_id=(character * 40_000).encode())
    one.record(client_id=b"after")
    first, second = bench.lines()
    assert first["request"]["transactionalId"] == character * kept
    assert [one["requestHeader"]["clientId"] for one in (first, second)] == ["before", "after"]


def test_every_byte_at_every_place_of_a_name(bench: Bench) -> None:
    """Each byte is escaped correctly at each position of the eight-byte copies."""
    one = bench.connect()
    for byte in range(256):
        names = [b"a" * place + bytes([byte]) + b"z" * (17 - place) for place in range(18)]
        for name in names:
            one.record(client_id=name)
        assert [r["requestHeader"]["clientId"] for r in bench.lines()] == [n.decode("utf-8", "replace") for n in names]


def test_software_is_known_from_its_request_on(bench: Bench) -> None:
    """Software from ApiVersions is kept after another authentication on the connection."""
    one = bench.connect(b"User:ANONYMOUS")
    one.record()
    one.record(api_key=18, software=(b"librdkafka", b"2.10.0"))
    one.log_in(b"User:bob")
    one.record()
    found = [(r["principal"], r["clientInformation"]["softwareName"]) for r in bench.lines()]
    assert found == [("User:ANONYMOUS", "unknown"), ("User:ANONYMOUS", "librdkafka"), ("User:bob", "librdkafka")]


def test_what_no_handler_has_seen_is_not_recorded(bench: Bench) -> None:
    """Requests that no handler received, requests for the log's own topic, and unknown APIs are not recorded."""
    one = bench.connect()
    one.record(dequeue_ns=0)
    one.record(leave_out=True)
    one.record(api_key=99)
    one.record(api_key=-1)
    assert bench.lines() == []


def test_a_late_request_is_recorded_too(bench: Bench) -> None:
    """A request whose network thread has ended is recorded through the shared ring."""
    bench.connect().record(is_late=True, correlation_id=5)
    (record,) = bench.lines()
    assert record["requestHeader"]["correlationId"] == 5


def test_gaps_show_what_found_no_room() -> None:
    """Dropped records are counted, and the gap in the sequence numbers shows their number."""
    bench = Bench(buffer_bytes=4096)
    one = bench.connect()
    one.record(count=100)
    written = len(bench.lines())
    dropped = bench.core.dropped
    assert written + dropped == 100
    assert dropped > 0
    one.record()
    (record,) = bench.lines()
    assert record["sequence"] == 101
    assert bench.core.queued_bytes == 0


def test_a_ring_goes_round_without_losing_anything() -> None:
    """Records of all sizes that cross the end of the ring are whole and in order."""
    bench = Bench(buffer_bytes=8192)
    one = bench.connect()
    seen = []
    for number in range(500):
        one.record(correlation_id=number, client_id=b"x" * (number * 7 % 300))
        if number % 5 == 4:
            seen += bench.lines()
    assert [r["requestHeader"]["correlationId"] for r in seen] == list(range(500))
    assert [len(r["requestHeader"]["clientId"]) for r in seen] == [n * 7 % 300 for n in range(500)]
    assert bench.core.dropped == 0


def test_sampling_keeps_a_share_and_every_verdict() -> None:
    """Each record has its sampling share, so that counts can be weighted; requests with verdicts are all recorded."""
    bench = Bench(sampling=0.25)
    one = bench.connect()
    one.record(count=2000)
    chosen = bench.lines()
    assert 400 < len(chosen) < 600
    assert {r["sampling"] for r in chosen} == {0.25}
    one.record(count=10, verdicts=[(PRODUCE, b"", b"", 8, 1, 2.0, 1.0, 1, 1, 1, False)])
    assert [r["sampling"] for r in bench.lines()] == [1.0] * 10


def test_no_sampling_leaves_verdicts_alone() -> None:
    """With a share of 0, only requests with verdicts are recorded."""
    bench = Bench(sampling=0.0)
    bench.connect().record(count=100)
    assert bench.lines() == []


def poll(one: SampleConnection, at_ns: int, **facts: Any) -> None:
    one.record(api_key=1, start_ns=at_ns - 500, dequeue_ns=at_ns - 400, response_sent_ns=at_ns, brought_nothing=True,
               request_bytes=50, response_bytes=20, network_ns=1000, **facts)  # fmt: skip


def test_idle_polls_of_a_second_are_one_record(bench: Bench) -> None:
    """Sizes and network time are sums over the folded polls; the other fields are those of the last poll."""
    one, other = bench.connect(index=1), bench.connect(index=2)
    offset = bench.clock.epoch_ms() * 10**6 - bench.now_ns()
    second = ((bench.now_ns() + offset) // 10**9 + 1) * 10**9 - offset  # the next whole second
    for number in range(5):
        poll(one, second + number * 1000, correlation_id=number)
    poll(other, second)
    poll(one, second + 10**9, correlation_id=9)
    found = sorted(bench.lines(), key=lambda r: (r["connection"], r["time"]))
    assert [(r["repeated"], r["requestBytes"], r["responseBytes"]) for r in found] == [
        (5, 250, 100), (1, 50, 20), (1, 50, 20),
    ]  # fmt: skip
    assert found[0]["requestHeader"]["correlationId"] == 4
    assert found[0]["networkTimeMs"] == 0.005


def test_an_idle_poll_waits_for_the_end_of_its_second(bench: Bench) -> None:
    """A folded record is written when its second has passed."""
    one = bench.connect()
    poll(one, bench.now_ns())
    assert bench.lines(unfolds=False) == []
    bench.clock.advance_ms(1000)
    (record,) = bench.lines(unfolds=False)
    assert record["repeated"] == 1


@pytest.mark.parametrize(
    "facts",
    [
        {"errors": [(1, 1)]},
        {"throttle_ms": 5},
        {"updates": [(FETCH, b"", b"", 1, 1, 1.0, True)]},
        {"verdicts": [(FETCH, b"", b"", 1, 1, 1.0, 1.0, 1, 1, 1, False)]},
    ],
    ids=["error", "throttled", "update", "verdict"],
)
def test_a_poll_with_something_to_report_is_not_folded(bench: Bench, facts: dict[str, Any]) -> None:
    """A poll with an error, a delay, a charge or a verdict has a separate record."""
    one = bench.connect()
    for _ in range(3):
        poll(one, bench.now_ns(), **facts)
    assert len(bench.lines(unfolds=False)) == 3


def test_polls_of_another_client_or_version_are_not_folded_together(bench: Bench) -> None:
    """Polls are folded by client id and version, because a connection may have several client ids."""
    one = bench.connect()
    for client_id, version in ((b"a", 4), (b"b", 4), (b"b", 5)):
        poll(one, bench.now_ns(), client_id=client_id, api_version=version)
    assert len(bench.lines()) == 3


def test_nothing_is_kept_of_closed_connections(bench: Bench) -> None:
    """Records outlive their connection, and undrained ones are freed with the log."""
    one = bench.connect()
    one.record(count=3)
    poll(one, bench.now_ns())
    del one
    assert len(bench.lines()) == 4
    bench.connect().record(count=3)
    poll(bench.connect(), bench.now_ns())
    bench.lines(unfolds=False)
    poll(bench.connect(), bench.now_ns())
    del bench  # under a sanitizer this reveals leaks


def test_names_of_apis_are_kafkas() -> None:
    assert [kafka_api_name(n) for n in ("Produce", "ApiVersions", "OffsetForLeaderEpoch")] == [
        "PRODUCE", "API_VERSIONS", "OFFSET_FOR_LEADER_EPOCH",
    ]  # fmt: skip
    assert len(QUOTA_TYPES) == 5


@pytest.mark.parametrize("sampling", [-0.1, 1.1, float("nan")])
def test_a_share_is_between_none_and_all(sampling: float) -> None:
    """A share outside 0 to 1 is refused."""
    with pytest.raises(ValueError, match="sampling"):
        Bench(sampling=sampling)


def test_a_refusal_has_its_own_kind_of_record(bench: Bench) -> None:
    """A refusal has neither principal nor times; the parsed key and version have columns of refusals."""
    bench.connect().record()
    bench.core.note_refusal(Refusal("unknown-api", 999, 7, 1, 0, 14, "a:1-b:2-0-3", "PLAINTEXT", "b"))
    bench.core.note_refusal(Refusal("malformed-header", -1, -1, -1, 0, -1, "", ""), 290)
    lines = bench.lines()
    assert sorted(line["sequence"] for line in lines) == [1, 2, 3]
    one, others = (line for line in lines if "refusal" in line)
    shared = {"version": 5, "time": "2026-01-02T03:04:05.123000Z", "broker": 7, "sampling": 1.0}
    quota: dict[str, list[object]] = {"verdicts": [], "updates": []}
    assert one == {
        **shared,
        "sequence": one["sequence"],
        "refusal": {"reason": "unknown-api", "requestApiKey": 999, "requestApiVersion": 7},
        "connection": "a:1-b:2-0-3",
        "address": "b",
        "listener": "PLAINTEXT",
        "repeated": 1,
        "quota": quota,
    }
    assert others == {
        **shared,
        "sequence": others["sequence"],
        "refusal": {"reason": "malformed-header"},
        "repeated": 290,
        "quota": quota,
    }
    with pytest.raises(ValueError, match="not in tuple"):
        bench.core.note_refusal(Refusal("no-reason", 0, 0, 0, 0, 0, "", ""))


def test_a_broker_without_a_request_log_counts_nothing() -> None:
    assert RequestLog(BrokerConfig(), VirtualClock(), {}, 1).figures == (0, 0, 0, 0)
