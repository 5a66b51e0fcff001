"""`kbroker top`: live usage of a broker in a terminal."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli import ended_by
from kbroker.cli.keyboard import keyboard
from kbroker.cli.options import Duration, bootstrap_option, connect, http_options, http_port, json_option, wall_clock
from kbroker.cli.output import is_dumb_terminal, print_json
from kbroker.client.connection import BrokerConnectionError
from kbroker.client.usage import Usage, UsageWatch
from kbroker.common.errors import KafkaError
from kbroker.common.threads import new_thread

if TYPE_CHECKING:
    from kbroker.cli.top_view import State
KEY_S = 0.25
ONCE_ROWS = 20
VIEW_NAMES = ("clients", "connections", "topics", "groups", "requests")


@click.command()
@bootstrap_option
@http_options
@click.option(
    "--every",
    type=Duration(200),
    default="2s",
    show_default=True,
    metavar="TIME",
    help="Time between two snapshots of the broker.",
)
@click.option("--view", type=click.Choice(VIEW_NAMES), default="clients", show_default=True, help="View to show first.")
@click.option("--once", is_flag=True, help="Print all views once and exit, for scripts.")
@json_option
def top(
    bootstrap_server: str, http_url: str | None, token: str | None, every: int, view: str, once: bool, as_json: bool
) -> None:
    """Watch clients, topics, groups and lag of a broker.

    Keys: 1 to 5 select the view, s or the left and right arrows the sort
    column, r reverses the order, up and down scroll, p pauses, q quits.

    Topics and groups are those of any Kafka. Clients, throttles and requests need a
    kbroker broker with an HTTP port (kbroker.metrics.listener).
    """
    if not as_json:
        _check_rich()
    context = click.get_current_context()

    def in_context(call: Callable[[], Any]) -> Any:
        with context.scope(cleanup=False):  # `connect` reads options from the context, on any thread
            return call()

    watch = UsageWatch(
        partial(in_context, partial(connect, bootstrap_server)),
        partial(in_context, partial(http_port, bootstrap_server, http_url, token)),
        wall_clock(),
    )
    if once or as_json or not sys.stdout.isatty() or is_dumb_terminal():
        with closing(watch):
            _print_once(watch, every / 1000, view, bootstrap_server, as_json)
    else:
        _live(watch, every / 1000, view, bootstrap_server)


def _check_rich() -> None:
    try:
        import rich  # noqa: F401
    except ImportError:
        raise click.ClickException("this needs rich: pip install 'kbroker[top]'; --json does not need it") from None


# ---------------------------------------------------------------- once


def _print_once(watch: UsageWatch, every_s: float, view: str, server: str, as_json: bool) -> None:
    watch.look()
    time.sleep(every_s)
    usage = watch.look()
    if as_json:
        from dataclasses import asdict

        print_json(asdict(usage))
        return
    from rich.console import Console
    from rich.text import Text

    from kbroker.cli.top_view import VIEWS, State, head_of, table_of

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 80)
    for line in head_of(usage, server):
        console.print(line, soft_wrap=True)  # not wrapped: a script may read it
    first = VIEW_NAMES.index(view)
    for number in (first, *(n for n in range(len(VIEWS)) if n != first)):
        console.print()
        console.print(Text(VIEWS[number].name.upper(), style="bold cyan"))
        console.print(table_of(usage, State(number), ONCE_ROWS, console.width))


# ---------------------------------------------------------------- live


class _Looker:
    """Thread that takes the snapshots, so that keys take effect at once. It closes the watch at its end."""

    def __init__(self, watch: UsageWatch, every_s: float) -> None:
        self._watch = watch
        self._every_s = every_s
        self._over = threading.Event()
        self.changed = threading.Event()
        self.usage: Usage | None = None
        self.note = ""
        self.is_paused = False
        self.failure: BaseException | None = None
        self._thread = new_thread("top", self._run)
        self._thread.start()

    def _run(self) -> None:
        with closing(self._watch):
            while not self._over.is_set():
                if not self.is_paused:
                    try:
                        self.usage = self._watch.look()
                        self.note = ""
                    except (BrokerConnectionError, KafkaError) as error:
                        self.note = f"no response, trying again: {error}"
                    except BaseException as error:
                        self.failure = error
                        self.changed.set()
                        return
                    self.changed.set()
                self._over.wait(self._every_s)

    def end(self) -> None:
        """End the thread, possibly after a snapshot in progress."""
        self._over.set()


def _live(watch: UsageWatch, every_s: float, view: str, server: str) -> None:
    from rich.console import Console
    from rich.live import Live

    from kbroker.cli.top_view import State, screen_of

    console = Console(highlight=False)
    looker = _Looker(watch, every_s)
    state = State(VIEW_NAMES.index(view))

    def screen() -> Any:
        return screen_of(looker.usage, state, server, console.size, note=looker.note, is_paused=looker.is_paused)

    try:
        with (
            ended_by(signal.SIGTERM, signal.SIGHUP, again=signal.SIG_IGN),  # the clean-up restores the terminal
            keyboard() as keys,
            Live(screen(), console=console, screen=True, auto_refresh=False, redirect_stderr=False) as live,
        ):
            size = console.size
            while looker.failure is None:
                key = _next_key(keys)
                if key == "q":
                    return
                if key == "p":
                    looker.is_paused = not looker.is_paused
                elif key is not None:
                    state = after_key(state, key, looker.usage, console.size.height)
                if key is not None or looker.changed.is_set() or console.size != size:
                    looker.changed.clear()
                    size = console.size
                    live.update(screen(), refresh=True)
            raise looker.failure
    finally:
        looker.end()


def _next_key(keys: Any) -> str | None:
    if keys is not None:
        found: str | None = keys.key(KEY_S)
        return found
    time.sleep(KEY_S)
    return None


def after_key(state: State, key: str, usage: Usage | None, lines: int) -> State:
    """Return the view after a key."""
    from kbroker.cli.top_view import FRAME_LINES, VIEWS, State, sorted_rows

    columns = len(VIEWS[state.view].columns)
    page = max(1, lines - FRAME_LINES)
    if len(key) == 1 and key.isdigit() and 1 <= int(key) <= len(VIEWS):
        return State(int(key) - 1)
    if key == "\t":
        return State((state.view + 1) % len(VIEWS))
    if key in ("s", "right"):
        return state._replace(sort=(state.column + 1) % columns, first=0)
    if key == "left":
        return state._replace(sort=(state.column - 1) % columns, first=0)
    if key == "r":
        return state._replace(is_ascending=not state.is_ascending, first=0)
    steps = {"up": -1, "down": 1, "page up": -page, "page down": page, "home": -state.first, "k": -1, "j": 1}
    if key in steps and usage is not None:
        last = max(0, len(sorted_rows(usage, state)) - page)
        return state._replace(first=min(last, max(0, state.first + steps[key])))
    return state
