"""`kbroker xray`: current activity of a kbroker broker."""

from __future__ import annotations

import time
from typing import Any

import click

from kbroker.cli.options import Duration, bootstrap_option, http_options, http_port, json_option
from kbroker.cli.output import print_json, print_table, styled
from kbroker.cli.short_text import (
    or_dash,
    percent,
    printable,
    short_number,
    short_time,
    thread_name,
    time_left,
    why_muted,
)
from kbroker.common.printable import columns_of
from kbroker.common.units import counted

PATH = "/xray"
WIDTH = 80
CONNECTIONS = ["CLIENT", "ADDRESS", "WHY", "LEFT", "WORKS", "POOL"]


@click.command()
@bootstrap_option
@http_options
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    metavar="COUNT",
    help="Maximum number of connections, and of operations of each purgatory; the most urgent are shown.",
)
@click.option(
    "--wait",
    type=Duration(),
    default="1s",
    show_default=True,
    metavar="TIME",
    help="Time between two snapshots, which the shares of threads and the latest requests need. 0s: one snapshot.",
)
@json_option
def xray(bootstrap_server: str, http_url: str | None, token: str | None, limit: int, wait: int, as_json: bool) -> None:
    """Show the current activity of a kbroker broker.

    The output has muted connections with the reason and the time left; delayed
    operations in the purgatories; memory, queues and threads; the slowest
    requests of the last minutes with their times. No thread is stopped.
    The broker needs an HTTP port: kbroker.metrics.listener.
    """
    port = http_port(bootstrap_server, http_url, token)
    found = port.get(PATH, {"limit": limit})
    if wait:
        time.sleep(wait / 1000)
        found = port.get(PATH, {"limit": limit})
    if as_json:
        print_json(found)
    else:
        show(found)


def show(found: dict[str, Any]) -> None:
    """Print a snapshot for people, WIDTH columns wide."""
    connections = found["connections"]
    muted = ((reason.removeprefix("batch_").replace("_", " "), n) for reason, n in connections["muted"].items() if n)
    why = ", ".join(f"{count} {reason}" for reason, count in muted)
    click.echo(
        styled(f"broker {found['node_id']}", bold=True)
        + f"  {counted(connections['open'], 'connection')}, not read: {why or 'none'}"
    )
    for thread in found["network_threads"]:
        if thread["answer"] != "ok":
            click.echo(styled(f"no snapshot of {printable(thread['name'])}: it is {thread['answer']}", fg="yellow"))
    _connections(connections, has_pool=found["memory_pool"] is not None)
    _purgatories(found["purgatories"])
    _memory_and_queues(found)
    _threads(found)
    for title, key in (("SLOWEST REQUESTS", "slowest"), ("LATEST REQUESTS", "latest")):
        _requests(title, found["requests"][key][: 10 if key == "slowest" else 5])


def _title(text: str) -> None:
    click.echo()
    click.echo(styled(text, bold=True, fg="cyan"))


def _connections(connections: dict[str, Any], has_pool: bool) -> None:
    shown = [c for c in connections["shown"] if c["muted"] or c["frame_bytes"] or c["stage"] != "open"]
    if not shown:
        return
    _title("CONNECTIONS THAT ARE NOT READ, OR ARE BEING READ")
    rows = [
        [
            or_dash(c["client_id"], 14),
            printable(f"{c['address']}:{c['port']}", 21),
            why_muted(c, 20) if c["stage"] == "open" else c["stage"],
            time_left(c),
            short_time(c["in_flight_ms"]),
            f"{short_number(c['memory_pool_bytes'])}B" if c["memory_pool_bytes"] else "-",
        ]
        for c in shown
    ]
    table = [CONNECTIONS, *rows] if has_pool else [row[:-1] for row in (CONNECTIONS, *rows)]
    left = WIDTH - sum(2 + max(map(columns_of, column)) for column in list(zip(*table, strict=True))[1:])
    header, *lines = [[printable(row[0], left), *row[1:]] for row in table]
    print_table(header, lines, right=[3, 4, 5])
    if connections["is_truncated"] and len(shown) == len(connections["shown"]):
        click.echo(f"... of {connections['open']}; --limit shows more")


def _purgatories(purgatories: list[dict[str, Any]]) -> None:
    _title("WAITING")
    rows = []
    for purgatory in purgatories:
        rows.append([purgatory["name"], f"{purgatory['delayed']} wait", "", "", ""])
        for operation in purgatory["operations"]:
            keys = [printable("-".join(map(str, key)), 20) for key in operation["keys"]]
            more = operation["key_count"] - 1
            rows.append(
                [
                    f"  {operation['operation']}",
                    (keys[0] if keys else "-") + (f" +{more}" if more > 0 else ""),
                    or_dash(operation.get("client_id"), 14),
                    short_time(operation["age_ms"]),
                    short_time(operation["time_left_ms"]),
                ]
            )
        if purgatory["is_truncated"]:
            rows.append(["  ... and more", "", "", "", ""])
    print_table(["PURGATORY", "KEY", "CLIENT", "AGE", "LEFT"], rows, right=[3, 4])


def _memory_and_queues(found: dict[str, Any]) -> None:
    _title("MEMORY AND QUEUES")
    pool = found["memory_pool"]
    if pool is None:
        click.echo("memory pool: unlimited")
    else:
        click.echo(
            f"memory pool: {short_number(pool['size_bytes'] - pool['available_bytes'])}B of "
            f"{short_number(pool['size_bytes'])}B, by connections {short_number(pool['connections_bytes'])}B; "
            f"it was empty for {short_time(pool['depleted_ms'])} so far"
            f"{', and is empty now' if pool['is_out_of_memory'] else ''}"
        )
    rows = [
        [
            queue["name"],
            queue["depth"],
            queue.get("capacity") if queue.get("capacity", 0) < 1 << 30 else None,
            f"{queue['idle_takers']} of {queue['takers']}" if "takers" in queue else None,
            short_time(queue.get("put_blocked_ms")),
        ]
        for queue in found["queues"]
    ]
    print_table(["QUEUE", "DEPTH", "OF", "TAKERS IDLE", "WAS FULL"], rows, right=[4])


def _threads(found: dict[str, Any]) -> None:
    busy = [t for t in found["threads"] if t["cpu_share"] is not None][:8]
    idle = found["handlers_idle_share"]
    _title(f"THREADS (handlers idle {percent(idle)}; over {short_time(found['threads_window_ms'])})")
    shares = ("cpu_share", "runnable_share", "idle_share")
    rows = [[printable(thread_name(one["name"]), 40), *(percent(one[share]) for share in shares)] for one in busy]
    print_table(["THREAD", "ON A CORE", "IN LINE", "IDLE"], rows, right=[1, 2, 3])


def _requests(title: str, samples: list[dict[str, Any]]) -> None:
    if not samples:
        return
    _title(title)
    columns = ["request_queue_ms", "local_ms", "remote_ms", "send_ms", "total_ms", "throttle_ms", "age_ms"]
    rows = [
        [
            printable(sample["api"], 12),
            or_dash(sample["client_id"], 10),
            *(short_time(sample[column]) if column != "throttle_ms" or sample[column] else "-" for column in columns),
        ]
        for sample in samples
    ]
    header = ["API", "CLIENT", "QUEUE", "LOCAL", "REMOTE", "SEND", "TOTAL", "THROT", "AGO"]
    print_table(header, rows, right=range(2, 9))
