"""A record's line of JSON and its row of Arrow have the same values in every column."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.common.request_log_names import ARROW_END
from kbroker.request_log._drain import RecordDrain
from kbroker.request_log.arrow_form import ArrowForm
from tests.support.request_log import NAMES, Bench, as_columns, as_row

pa = pytest.importorskip("pyarrow")

TEXT = st.one_of(st.binary(max_size=40), st.text(max_size=20).map(lambda text: text.encode()))
NAME = TEXT.map(lambda text: text.replace(b"\0", b""))  # name of a session, which is a C string
FLAG = st.booleans()


def whole(bits: int) -> st.SearchStrategy[int]:
    """Draw signed numbers, especially the ends of the range of this many bits."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.one_of(st.sampled_from([low, low + 1, -1, 0, 1, high - 1, high]), st.integers(low, high))


FLOAT = st.one_of(st.floats(), st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 1.7e308]))
#: Nanoseconds; JSON has them as decimal milliseconds, which are exact up to 2^53 microseconds.
SPAN = st.integers(0, 10**15)
SOFTWARE = st.text("abcXYZ019-._", min_size=1, max_size=12).map(str.encode)


def stamps(spans: tuple[int, ...]) -> dict[str, int]:
    """Return the times of a request whose steps had these durations."""
    names = ("dequeue_ns", "local_done_ns", "response_ready_ns", "response_dequeue_ns", "response_sent_ns")
    found, at = {"start_ns": 1}, 1
    for name, span in zip(names, spans, strict=True):
        at += span
        found[name] = at
    return found


UPDATE = st.tuples(st.integers(0, 3), TEXT, TEXT, whole(64), whole(64), FLOAT, FLAG)
VERDICT = st.one_of(
    st.tuples(st.integers(0, 3), TEXT, TEXT, whole(8), whole(64), FLOAT, FLOAT, *[whole(64)] * 3, FLAG),
    st.tuples(st.just(4), TEXT, st.just(b""), whole(8), whole(64), FLOAT, FLOAT, *[whole(64)] * 3, FLAG),
)
REQUEST = st.fixed_dictionaries(
    {
        "api_key": st.sampled_from(sorted(NAMES)),  # no other request reaches the log
        "api_version": whole(16),
        "correlation_id": whole(32),
        "client_id": st.one_of(st.none(), TEXT),
        "network_ns": SPAN,
        "request_bytes": whole(64),
        "response_bytes": whole(64),
        "throttle_ms": whole(32),
        "errors": st.lists(st.tuples(whole(16), st.integers(0, 2**20)), max_size=3),
        "software": st.one_of(st.none(), st.tuples(SOFTWARE, SOFTWARE)),
        "updates": st.lists(UPDATE, max_size=3),
        "appended": st.lists(st.tuples(TEXT, whole(32), whole(64), whole(64)), max_size=3),
        "verdicts": st.lists(VERDICT, max_size=3),
        "stamps": st.tuples(*[SPAN] * 5).map(stamps),
    }
)


def recorded(principal: bytes, requests: list[dict[str, Any]]) -> Bench:
    bench = Bench(buffer_bytes=1 << 22)
    connection = bench.connect(b"User:" + principal)
    for request in requests:
        times = request["stamps"]
        connection.record(**{name: value for name, value in request.items() if name != "stamps"}, **times)
    return bench


def differing(line: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    assert line.keys() == row.keys()
    return {name: (line[name], row[name]) for name in line if line[name] != row[name]}


@settings(deadline=None)
@given(NAME, st.lists(REQUEST, min_size=1, max_size=4))
def test_both_forms_say_the_same(principal: bytes, requests: list[dict[str, Any]]) -> None:
    """Both forms are equal for any bytes in names, invalid numbers and the ends of every type."""
    lines = [as_columns(line) for line in recorded(principal, requests).lines()]
    bench = recorded(principal, requests)
    drain, form = RecordDrain(bench.core), ArrowForm(7, NAMES, partitions=0, compression="none", wants_lines=True)
    assert drain.drain(form.columns, 1 << 20, True)
    table = pa.ipc.open_stream(form.begin + form.take_lines() + ARROW_END).read_all()
    table.validate(full=True)
    rows = [as_row(row) for row in table.to_pylist()]
    assert len(rows) == len(requests)
    assert [differing(*pair) for pair in zip(lines, rows, strict=True)] == [{}] * len(rows)
