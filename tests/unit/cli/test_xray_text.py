"""Output of `kbroker xray` for people, in 80 columns."""

from typing import Any

import pytest

from kbroker.cli.xray import WIDTH, show

CONNECTION: dict[str, Any] = {
    "client_id": "loader",
    "address": "127.0.0.1",
    "port": 38818,
    "stage": "open",
    "muted": [],
    "throttled_by": None,
    "throttle_left_ms": None,
    "refusal_left_ms": None,
    "in_flight": 0,
    "in_flight_ms": None,
    "frame_bytes": 0,
    "frame_arrived_bytes": 0,
    "memory_pool_bytes": 0,
}
POOL = {
    "size_bytes": 8e6,
    "available_bytes": 5e6,
    "connections_bytes": 3e6,
    "depleted_ms": 0,
    "is_out_of_memory": False,
}


def printed(capsys: pytest.CaptureFixture[str], *connections: dict[str, Any], pool: Any = POOL) -> list[str]:
    """Return the table of connections."""
    shown = [{**CONNECTION, **more} for more in connections]
    show(
        {
            "node_id": 1,
            "connections": {"open": len(shown), "muted": {}, "shown": shown, "is_truncated": False},
            "network_threads": [],
            "purgatories": [],
            "memory_pool": pool,
            "queues": [],
            "threads": [],
            "threads_window_ms": 1000,
            "handlers_idle_share": 1.0,
            "requests": {"slowest": [], "latest": []},
        }
    )
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("CONNECTIONS THAT ARE NOT READ, OR ARE BEING READ")
    return lines[start + 1 : lines.index("", start)]


def test_bytes_of_the_pool_by_connection(capsys: pytest.CaptureFixture[str]) -> None:
    """The table shows the connection that holds memory for which others wait."""
    holds = {"memory_pool_bytes": 1_234_567, "frame_bytes": 2_000_000, "frame_arrived_bytes": 1_234_000}
    assert printed(capsys, holds, {"muted": ["memory_pool"], "client_id": None}) == [
        "CLIENT  ADDRESS          WHY                 LEFT  WORKS   POOL",
        "loader  127.0.0.1:38818  read 1.2M of 2.0MB     -      -  1.2MB",
        "-       127.0.0.1:38818  waits for memory       -      -      -",
    ]


def test_wide_characters_take_two_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns after a wide name are aligned with those of other lines."""
    lines = printed(capsys, {"client_id": "クライアント", "muted": ["stopping"]}, {"muted": ["stopping"]})
    assert lines[1:] == [
        "クライアント  127.0.0.1:38818  stopping     -      -     -",
        "loader        127.0.0.1:38818  stopping     -      -     -",
    ]


def test_without_a_pool_there_is_no_such_column(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a memory pool, which is the default, the column is omitted."""
    assert printed(capsys, {"muted": ["throttled"], "throttle_left_ms": 756}, pool=None) == [
        "CLIENT  ADDRESS          WHY         LEFT  WORKS",
        "loader  127.0.0.1:38818  throttled  756ms      -",
    ]


@pytest.mark.parametrize(
    ("why", "more"),
    [
        ("client does not read", {"muted": ["response_unsent"]}),
        ("throttled (Controll\u2026", {"muted": ["throttled"], "throttled_by": "ControllerMutation"}),
        ("read 12.3k of 12.3MB", {"frame_bytes": 12_300_000, "frame_arrived_bytes": 12_300}),
    ],
)
def test_the_widest_line_fits(capsys: pytest.CaptureFixture[str], why: str, more: dict[str, Any]) -> None:
    """The client's name is shortened, and an address of IPv6 gets the width of the longest address of IPv4."""
    widest = {
        "client_id": "a-client-id-of-many-characters",
        "address": "255.255.255.255",
        "port": 65535,
        "throttle_left_ms": 125_000,
        "in_flight_ms": 186_000 * 60,
        "memory_pool_bytes": 12_345,
    }
    longer = {"address": "2001:db8:85a3:8d3:1319:8a2e:370:7348", "muted": ["stopping"], "in_flight_ms": 0.4}
    lines = printed(capsys, {**widest, **more}, longer)
    assert lines[1] == f"a-client-id\u2026  255.255.255.255:65535  {why:<20}  2m05s   3h06m  12.3kB"
    assert max(map(len, lines)) == WIDTH
