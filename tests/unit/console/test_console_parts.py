"""Parts of a list, parameters of a page, and the refresh interval of pages."""

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.http_messages import MAX_PARAMETERS
from kbroker.console.app import LONGEST_MS, MAX_OF_USER, MAX_VIEWERS, SEEN_MS, SHORTEST_MS, Viewers
from kbroker.console.paging import part_of
from kbroker.console.rendering import decided, judged
from kbroker.console.requests import MAX_TEXT, PageError, Query
from kbroker.console.views.quotas import _left


def test_parts_of_ten_thousand() -> None:
    rows = range(10_000)
    part = part_of(rows, Query({"q": "a b&c", "page": "3", "sort": ""}), "topics")
    assert (part.first, part.last, part.total, part.number, part.pages) == (101, 150, 10_000, 3, 200)
    assert list(part.rows) == list(range(100, 150))
    assert part.previous == "/console/topics?q=a+b%26c&page=2"
    assert part.next == "/console/topics?q=a+b%26c&page=4"


@pytest.mark.parametrize(("page", "number"), [(1, 1), (200, 200), (10**9, 200)])
def test_the_nearest_part(page: int, number: int) -> None:
    assert part_of(range(10_000), Query({"page": str(page)}), "x").number == number


def test_no_rows() -> None:
    part = part_of([], Query({}), "x")
    assert (part.first, part.last, part.pages, part.previous, part.next) == (0, 0, 1, None, None)


@pytest.mark.parametrize(
    ("text", "name", "wrong"),
    [
        ("offset=abc", "offset", "'abc'"),
        ("offset=-2", "offset", "'-2'"),
        ("offset=99999999999999999999999", "offset", "9999"),
        ("offset=%D9%A3x", "offset", "x"),
        ("time=yesterday", "time", "'yesterday'"),
    ],
)
def test_a_bad_parameter_is_named(text: str, name: str, wrong: str) -> None:
    query = Query.parse(text)
    with pytest.raises(PageError) as failure:
        query.time_ms("time") if name == "time" else query.integer("offset", 0, 0, 2**63 - 1)
    assert failure.value.status == 400
    assert name in failure.value.sentence
    assert wrong in failure.value.sentence


@pytest.mark.parametrize(("allowed", "listed"), [(("a", "b"), "a or b"), (("a", "b", "c"), "a, b, c")])
def test_a_word_that_is_no_choice(allowed: tuple[str, ...], listed: str) -> None:
    with pytest.raises(PageError) as failure:
        Query({"kind": "d"}).choice("kind", allowed)
    assert failure.value.sentence == f"kind is 'd'; expected {listed}."


@pytest.mark.parametrize(
    "text", ["a=1&a=2", "a=%FF", "&".join(f"p{n}=" for n in range(MAX_PARAMETERS + 1)), "a=" + "x" * (MAX_TEXT + 1)]
)
def test_what_no_page_sends_is_refused(text: str) -> None:
    with pytest.raises(PageError) as failure:
        Query.parse(text)
    assert failure.value.status == 400


def test_times_are_utc() -> None:
    assert Query.parse("time=2026-01-31T12:30:05").time_ms("time") == 1_769_862_605_000
    assert Query.parse("time=2026-01-31T12:30:05%2B01:00").time_ms("time") == 1_769_859_005_000
    assert Query.parse("time=2026-01-31T12:30").time_ms("time") == 1_769_862_600_000
    assert Query.parse("time=1969-12-31T23:59:59.999Z").time_ms("time") == 0  # -1 is the end of a partition
    assert Query.parse("time=").time_ms("time") is None
    assert Query.parse("offset=1,234").integer("offset", 0, 0, 2000) == 1234


def test_all_pages_together_ask_ten_times_a_second() -> None:
    clock = VirtualClock()
    viewers = Viewers(clock)
    assert viewers.again_ms("") == SHORTEST_MS
    for number in range(100):
        again_ms = viewers.again_ms(f"page {number}")
    assert again_ms == 10_000
    clock.advance_ms(SEEN_MS)
    assert viewers.again_ms("page 0") == SHORTEST_MS
    for number in range(10 * MAX_VIEWERS):
        again_ms = viewers.again_ms(f"page {number}")
    assert again_ms == LONGEST_MS, "invented names delay other pages by a limited time"


def test_a_user_slows_the_pages_of_others_by_twenty_of_its_own() -> None:
    """The pages of one user count at most twenty times in the refresh interval of the others."""
    viewers = Viewers(VirtualClock())
    for number in range(10 * MAX_OF_USER):
        viewers.again_ms(f"page {number}", "User:alice")
    for number in range(MAX_OF_USER):
        again_ms = viewers.again_ms(f"page {number}")
    assert again_ms == 4000


def test_an_amount_that_is_left_in_words() -> None:
    texts = [_left("producer_byte_rate", left) for left in (None, 1024.0, 0.0, -1024.0)]
    assert texts == ["-", "1.0 KiB left", "0 B left", "1.0 KiB too much"]


def test_a_decision_in_words() -> None:
    """Small limits have their digits, tokens are not a rate, and a delay is the served delay."""
    assert judged("request_percentage", 0.5256, 0.01) == ("0.526 %", "0.01 %")
    assert judged("request_percentage", 1234.56, 200.0) == ("1,234.6 %", "200 %")
    assert judged("controller_mutation_rate", -5.0, 0.5) == ("-5 tokens", "0.5/s")
    assert judged("producer_byte_rate", 1536.0, 1024.0) == ("1.5 KiB/s", "1 KiB/s")
    assert judged("connection_creation_rate", 12.25, 10.0) == ("12.2/s", "10/s")
    assert [decided(True, 0), decided(False, 1000), decided(False, 0)] == ["refused", "1.0 s", "within a longer delay"]
