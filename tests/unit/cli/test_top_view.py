"""Drawing of `kbroker top` in 80 columns and few lines, its keys, and short safe texts."""

import io
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.cli.short_text import padded, percent, printable, short_number, short_time, thread_name
from kbroker.cli.top import _print_once, after_key
from kbroker.client.usage import ClientUse, GroupUse, TopicUse, Usage
from kbroker.common.printable import columns_of

pytest.importorskip("rich")

from rich.cells import cell_len
from rich.console import Console

from kbroker.cli.top_view import VIEWS, State, screen_of, sorted_rows

EVIL = "\x1b[2J\x1b]0;pwned\x07[red]gone[/red]\u202e"


def usage_of(clients: int = 3, *, xray: dict[str, Any] | None = None) -> Usage:
    usage = Usage(0, 1.0, 2.0, xray=xray, xray_missing="" if xray else "it has no HTTP port")
    for number in range(clients):
        throttled = number == 1
        usage.clients.append(
            ClientUse(
                "User:ANONYMOUS",
                f"client-{number}",
                2,
                int(throttled),
                ["Fetch"] if throttled else [],
                2900 if throttled else 0,
                10.0 * number,
                1e6 * (clients - number),
                None,
                1,
                4096,
                0,
            )
        )
    usage.topics = [TopicUse("orders", 3, 12_345_678, 950.0), TopicUse(EVIL, 1, 0, None)]
    usage.groups = [GroupUse("g" * 200, "Stable", 1, 17, -3.5), GroupUse("empty", "Empty", 0, None, None)]
    return usage


XRAY: dict[str, Any] = {
    "connections": {"open": 6, "muted": {"throttled": 1}, "shown": [], "is_truncated": False},
    "memory_pool": None,
    "queues": [{"name": "requests", "depth": 3, "capacity": 500}, {"name": "python_requests", "depth": 0}],
    "threads": [],
    "handlers_idle_share": 0.5,
    "purgatories": [{"name": "Fetch", "delayed": 2}],
    "requests": {"slowest": [], "latest": []},
}


def drawn(usage: Usage | None, state: State, lines: int = 24, width: int = 80, **more: Any) -> list[str]:
    console = Console(width=width, height=lines, file=io.StringIO(), force_terminal=False, highlight=False)
    with console.capture() as captured:
        console.print(screen_of(usage, state, "127.0.0.1:9092", (width, lines), **more))
    return captured.get().rstrip("\n").split("\n")


@pytest.mark.parametrize("view", range(len(VIEWS)))
@pytest.mark.parametrize("xray", [None, XRAY])
@pytest.mark.parametrize("clients", [0, 3, 10_000])
def test_every_view_fits_the_screen(view: int, xray: dict[str, Any] | None, clients: int) -> None:
    lines = drawn(usage_of(clients, xray=xray), State(view))
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("width", "state", "header"),
    [
        (80, State(), "CLIENT   PRINCIPAL CONN REQ/S IN B/S▼ OUT B/S POOL    THROTTLED BY"),
        (200, State(), "CLIENT   PRINCIPAL CONN REQ/S IN B/S▼ OUT B/S POOL    THROTTLED BY"),
        (63, State(), "CLIENT   PRINCIPAL CONN REQ/S IN B/S▼ OUT B/S POOL"),
        (40, State(), "CLIENT   PRINCIPAL CONN REQ/S IN B/S▼"),
        (40, State(sort=7), "CLIENT   PRINCIPAL CONN   THROTTLED BY▼"),
        (20, State(), "CLIENT   IN B/S▼"),
    ],
)
def test_a_narrow_terminal_shows_fewer_columns(width: int, state: State, header: str) -> None:
    """Whole columns are omitted instead of truncated, so that each number has all its digits."""
    lines = drawn(usage_of(xray=XRAY), state, width=width)
    assert lines[4].rstrip() == header
    (line,) = [line for line in lines if line.startswith("client-0")]
    assert "\u2026" not in line
    if "IN B/S" in header:
        assert "3.0M" in line


def test_a_name_is_cut_only_where_a_column_has_no_place_for_it() -> None:
    usage = usage_of(1, xray=XRAY)
    usage.clients[0].client_id = "a-client-id-that-is-long"
    lines = drawn(usage, State(sort=3), width=20)
    assert lines[4:6] == ["CLIENT        REQ/S▼", "a-client-id-…      0"]


WIDE = "クライアント-" * 5


def test_wide_characters_take_two_columns() -> None:
    """A table with wide characters fits the terminal."""
    usage = usage_of(xray=XRAY)
    usage.clients[1].client_id = WIDE
    lines = drawn(usage, State())
    (line,) = [line for line in lines if line.startswith(WIDE[:5])]
    assert line.rstrip().endswith("Fetch 2.9s")
    assert columns_of(line.rstrip()) <= 80
    assert lines[4].rstrip().endswith("THROTTLED BY")


@pytest.mark.parametrize("text", ["", "abc", "ünï", "e\u0301", WIDE, "한국어", "x\u200b"])
@pytest.mark.parametrize("most", [1, 2, 3, 4, 7, 10])
def test_a_text_is_cut_by_columns(text: str, most: int) -> None:
    """The width of a cut text in columns is that of rich."""
    cut = printable(text, most)
    assert columns_of(cut) == cell_len(cut) <= most
    assert (cut == printable(text)) == (cell_len(printable(text)) <= most)
    assert [cell_len(padded(cut, 12, right=right)) for right in (True, False)] == [12, 12]


def test_a_throttled_client_says_by_what_and_for_how_long() -> None:
    lines = drawn(usage_of(xray=XRAY), State())
    assert "6 conn, 1 throttled" in lines[1]
    (line,) = [line for line in lines if line.startswith("client-1")]
    assert "Fetch 2.9s" in line


def test_without_an_http_port_topics_are_shown_and_a_sentence_says_why() -> None:
    lines = drawn(usage_of(0), State(2))
    assert "clients are not shown: it has no HTTP port" in lines[2]
    assert any("orders" in line and "12.3M" in line for line in lines)


def test_names_of_clients_are_no_commands_of_the_terminal() -> None:
    text = "\n".join(drawn(usage_of(), State(2)))
    assert r"\u001b[2J\u001b]0;pwned\u0007[red]gone[/red]\u202e"[:30] in text
    assert "\x1b" not in text


def test_once_without_a_terminal_cuts_and_breaks_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Output without a terminal is for scripts: no line is broken or cut."""
    waiting = [{"name": name, "delayed": 7} for name in ("Fetch", "Produce", "Rebalance", "Heartbeat")]
    usage: Any = usage_of(xray={**XRAY, "purgatories": waiting})
    watch: Any = SimpleNamespace(look=lambda: usage)
    _print_once(watch, 0.0, "topics", "127.0.0.1:9092", as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].endswith("waiting: 7 Fetch, 7 Produce, 7 Rebalance, 7 Heartbeat")
    assert lines[3:5] == ["", "TOPICS"]


def test_before_the_first_look_and_while_the_broker_is_stopped() -> None:
    assert "looking ..." in "\n".join(drawn(None, State()))
    assert "connection refused" in "\n".join(drawn(None, State(), note="connection refused"))
    assert "\x1b" not in "".join(drawn(None, State(), note=EVIL)), "the broker's text is escaped"
    lines = drawn(usage_of(xray=XRAY), State(), note="no response, trying again: connection refused")
    assert "trying again" in lines[0]
    assert any("client-2" in line for line in lines), "the last values stay on the screen"


def test_keys() -> None:
    usage = usage_of(100, xray=XRAY)
    state = State()
    assert [c.client_id for c in sorted_rows(usage, state)[:2]] == ["client-0", "client-1"], "the order is by bytes in"
    state = after_key(state, "r", usage, 24)
    assert sorted_rows(usage, state)[0].client_id == "client-99"
    state = after_key(state, "down", usage, 24)
    assert state.first == 1
    assert after_key(state, "page down", usage, 24).first == 19
    assert after_key(state._replace(first=99), "down", usage, 24).first == 82, "the last page is full"
    assert after_key(state, "home", usage, 24).first == 0
    assert after_key(state, "3", usage, 24) == State(2)
    assert after_key(state, "9", usage, 24) == state
    assert after_key(State(4), "\t", usage, 24) == State(0)
    assert after_key(State(), "right", usage, 24).column == 5
    assert after_key(State(sort=0), "left", usage, 24).column == len(VIEWS[0].columns) - 1
    names = [c.client_id for c in sorted_rows(usage, State(sort=0))]
    assert names == sorted(names), "names ascend, numbers descend"


def test_short_texts() -> None:
    times = [None, 0, 0.123, 9.94, 12.3, 999.4, 999.6, 59_949, 60_000, 125_000, 11_220_000, 864_000_000]
    expected = ["-", "0.00ms", "0.12ms", "9.9ms", "12ms", "999ms", "1.0s", "59.9s", "1m00s", "2m05s", "3h07m", "10d"]
    assert [short_time(ms) for ms in times] == expected
    numbers = [None, 0, 1e-5, 0.0012, 0.0123, 0.05, 7, 7.5, 999, 1000, 12_345, 999_400, 999_600, 4e9, -3.5]
    expected = ["-", "0", "1e-05", "0.001", "0.012", "0.05", "7", "7.5", "999", "1.0k", "12.3k", "999k", "1.0M"]
    expected += ["4.0G", "-3.5"]
    assert [short_number(n) for n in numbers] == expected
    assert [percent(None), percent(0.005), percent(1)] == ["-", "0%", "100%"]
    assert printable("a\nb\x00\u200f", 20) == r"a\u000ab\u0000\u200f"
    assert printable("x" * 50, 10) == "x" * 9 + "…"
    name = "data-plane-kafka-network-thread-1-ListenerName(CLIENT)-SASL_SSL-12"
    assert thread_name(name) == "network thread 12 (CLIENT)"
    assert thread_name("data-plane-kafka-request-handler-3") == "request-handler-3"
