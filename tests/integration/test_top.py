"""`kbroker top` in a terminal, `kbroker requests tail` and `kbroker xray` with a running broker."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kbroker.broker import Broker
from tests.support.broker import wait_for
from tests.support.client import Client
from tests.support.closing import close_at_end
from tests.support.fixtures import fixture_of
from tests.support.ports import free_run
from tests.support.wire import Connection, create_topic

pty = pytest.importorskip("pty")
pytest.importorskip("rich")

KBROKER = [sys.executable, "-c", "from kbroker.__main__ import main; main()"]


def settings_of(port: int, folder: Path | None = None) -> dict[str, object]:
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "kbroker.in.memory": True,
        "kbroker.metrics.listener": "127.0.0.1:0",
        "kbroker.request.log.topic": "__request_log",
        **({} if folder is None else {"kbroker.request.log.dir": str(folder)}),
    }


port = fixture_of(free_run, 1)


@pytest.fixture
def broker(port: int, tmp_path: Path) -> Iterator[Broker]:
    with Broker(settings_of(port, tmp_path / "log")) as running:
        with Connection(running.bootstrap_servers) as admin:
            admin.ask(create_topic("orders", 1))
        yield running


class Terminal:
    """Command in a pseudo-terminal of 80 columns and 24 lines."""

    def __init__(self, *arguments: str) -> None:
        import fcntl
        import struct
        import termios

        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        self._has_output = select.poll()  # select() accepts no descriptor above 1023
        self._has_output.register(self.master, select.POLLIN)
        environment = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            [*KBROKER, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        self.output = b""

    def read(self) -> str:
        """Return all output so far, without colours."""
        while self._has_output.poll(0):
            self.output += os.read(self.master, 1 << 16)
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.output.decode("utf-8", "replace"))

    def see(self, text: str) -> None:
        """Wait until a text is drawn."""
        wait_for(f"{text!r} is drawn", lambda: text in self.read(), 40)
        self.output = b""

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def ended(self) -> int:
        """Wait for the end of the command, which must restore the terminal's attributes; return the exit status."""
        import termios

        def is_over() -> bool:
            self.read()  # a full buffer would block the command
            return self.process.poll() is not None

        wait_for("the command ends", is_over)
        assert termios.tcgetattr(self._slave) == self.before
        assert self.process.returncode is not None
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        os.close(self.master)
        os.close(self._slave)


@pytest.fixture
def terminal(port: int) -> Terminal:
    return close_at_end(Terminal("top", "-b", f"127.0.0.1:{port}", "--every", "300ms"))


@pytest.mark.usefixtures("sigint_is_not_ignored")
def test_top_draws_sorts_survives_a_restart_and_leaves_a_clean_terminal(
    broker: Broker, terminal: Terminal, port: int, tmp_path: Path
) -> None:
    with Client(broker.bootstrap_servers, "busy-client") as client:
        client.produce("orders", 1000)
        assert client.end()["Responses"]
        terminal.see("busy-client")
        terminal.press("3")
        terminal.see("orders")
        terminal.press("1\x1b[C")  # the right arrow key
        terminal.see("OUT B/S▼")
        terminal.press("p")
        terminal.see("paused")
        terminal.press("p")
    broker.stop()
    terminal.see("no response, trying again")
    with Broker(settings_of(port)) as again, Client(again.bootstrap_servers, "after-restart") as client:
        client.call("ApiVersions", 0, {})
        terminal.see("after-restart")
        os.killpg(terminal.process.pid, signal.SIGINT)
        assert terminal.ended() == 130
    terminal.read()
    assert terminal.output.rstrip().endswith(b"\x1b[?25h") or b"\x1b[?1049l" in terminal.output, (
        "the first screen is back"
    )
    assert b"Traceback" not in terminal.output


def test_top_ends_by_q_and_by_sigterm(broker: Broker, terminal: Terminal, port: int) -> None:
    terminal.see("q quit")
    terminal.press("q")
    assert terminal.ended() == 0
    with closing(Terminal("top", "-b", f"127.0.0.1:{port}", "--every", "300ms", "--view", "groups")) as other:
        other.see("q quit")
        other.process.send_signal(signal.SIGTERM)
        assert other.ended() == 143
        other.read()
        assert b"\x1b[?1049l" in other.output


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*KBROKER, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_once_for_scripts_and_the_xray(broker: Broker) -> None:
    address = broker.bootstrap_servers
    with Client(address, "script-client") as client:
        client.call("ApiVersions", 0, {})
        made = run("top", "-b", address, "--once", "--every", "200ms")
        assert made.returncode == 0, made.stderr
        assert all(word in made.stdout for word in ("script-client", "orders", "SLOWEST", "ANONYMOUS"))
        assert max(map(len, made.stdout.splitlines())) <= 80
        found = json.loads(run("top", "-b", address, "--json", "--every", "200ms").stdout)
        assert "script-client" in [c["client_id"] for c in found["clients"]]
        assert found["topics"][0]["topic"] in ("__request_log", "orders")
        made = run("xray", "-b", address, "--wait", "600ms")
        assert made.returncode == 0, made.stderr
        assert "MEMORY AND QUEUES" in made.stdout
        assert max(map(len, made.stdout.splitlines())) <= 80
        assert json.loads(run("xray", "-b", address, "--json", "--wait", "0s").stdout)["version"] == 1
    assert broker.metrics_url is not None
    refused = run("xray", "--http", f"{broker.metrics_url}/nowhere")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "404" in refused.stderr


def test_without_an_http_port_it_says_what_to_do() -> None:
    with Broker() as broker:
        refused = run("xray", "-b", broker.bootstrap_servers)
        assert refused.returncode == 1
        assert "start it with kbroker.metrics.listener=HOST:PORT" in refused.stderr
        made = run("top", "-b", broker.bootstrap_servers, "--once", "--every", "200ms")
        assert made.returncode == 0, made.stderr
        assert "clients are not shown" in made.stdout


def test_requests_tail_from_topic_and_files(broker: Broker, tmp_path: Path) -> None:
    address = broker.bootstrap_servers
    with Client(address, "slow-reader") as slow, Client(address, "quick") as quick:
        slow.fetch("orders", max_wait_ms=300)
        slow.end()
        for _ in range(3):
            quick.call("ApiVersions", 0, {})

    def tail(*more: str) -> str:
        made = run("requests", "tail", *more, "-b", address)
        assert made.returncode == 0, made.stderr
        return made.stdout

    for client_id in ("quick", "slow-reader"):
        wait_for(f"the records of {client_id} are in the topic", lambda i=client_id: i in tail("--client", i))  # type: ignore[misc]
    lines = tail("--client", "quick", "-n", "2").splitlines()
    assert len(lines) == 3, "a header and two"
    assert max(map(len, lines)) <= 80
    assert all("ApiVersions" in line for line in lines[1:])
    own = ("--client", "slow-reader")  # the command's fetches are in the log too
    (fetch,) = tail("--api", "fetch", "--slower-than", "250ms", *own).splitlines()[1:]
    assert "slow-reader" in fetch
    assert tail("--throttled", *own) == ""
    (document,) = map(json.loads, tail("--api", "FETCH", "--json", *own).splitlines())
    assert document["requestHeader"]["clientId"] == "slow-reader"
    from_files = run("requests", "tail", str(tmp_path / "log"), "--client", "quick", "-n", "1")
    assert from_files.stdout.splitlines()[1:] == lines[2:]
    missing = run("requests", "tail", "-b", address, "--topic", "none")
    assert missing.returncode == 1
    assert "kbroker.request.log.topic sets it" in missing.stderr


@pytest.mark.usefixtures("sigint_is_not_ignored")
def test_requests_tail_follows(broker: Broker) -> None:
    terminal = Terminal("requests", "tail", "-f", "-n", "0", "-b", broker.bootstrap_servers, "--client", "late")
    try:
        with Client(broker.bootstrap_servers, "late") as late:
            wait_for("new requests are printed", lambda: late.call("ApiVersions", 0, {}) and "late" in terminal.read())
        os.killpg(terminal.process.pid, signal.SIGINT)
        assert terminal.ended() == 130
    finally:
        terminal.close()
