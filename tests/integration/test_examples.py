"""Examples of the documentation, run with the results that docs/embedding.md shows."""

import importlib.util
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.broker import run_to_end

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def talk(port: int, sent: bytes) -> bytes:
    """Return everything that the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
        one.sendall(sent)
        one.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: one.recv(4096), b""))


@pytest.mark.soak
def test_noisy_neighbour() -> None:
    """The shadow quota observes batch-loader; when it is promoted, orders of web-shop are faster."""
    program = [sys.executable, str(EXAMPLES / "noisy_neighbour" / "noisy_neighbour.py")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=180, check=True)
    assert "shadow      4 MiB/s, level 7: client-id batch-loader" in done.stdout
    slowest = re.search(
        r"The slowest orders of web-shop: ([\d.]+) ms beside batch-loader, ([\d.]+) ms with", done.stdout
    )
    assert slowest is not None
    assert float(slowest[2]) < float(slowest[1])


def test_line_server() -> None:
    """Pipelined lines receive their responses in order, even delayed ones; an unknown command is refused."""
    server = example("line_server").LineServer().start()
    try:
        responses = talk(server.port, b"ECHO hello\nAFTER 20 later\r\nAFTER x y\nnonsense\nQUIT\nECHO never\n").split(
            b"\n"
        )
        assert responses[:3] == [b"hello", b"later", b"? AFTER milliseconds text"]
        assert responses[3].startswith(b"? ECHO")
        assert responses[4:] == [b""]
        assert b"timers=0" in talk(server.port, b"STATS\n")
    finally:
        server.stop()


def test_http_like() -> None:
    """Requests may arrive in pieces, or several at once."""
    server = example("http_like").HttpLikeServer().start()
    try:
        both = talk(server.port, b"GET /a HTTP/1.1\r\nHost: x\r\n\r\nPOST /b HTTP/1.1\r\n\r\n")
        assert both.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"you asked for /a\nHTTP/1.1 405 " in both
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as one:
            for piece in (b"GET /sl", b"ow HTTP/1.1\r", b"\n\r\n"):
                one.sendall(piece)
            response = b""
            while not response.endswith(b"/slow\n"):
                response += one.recv(4096)
        assert talk(server.port, b"x" * 9000) == b""
    finally:
        server.stop()


@pytest.mark.parametrize("name", ["line_server", "http_like"])
def test_a_port_in_use_is_one_line(name: str) -> None:
    """A server whose port is in use ends with one line that names the port."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = [sys.executable, str(EXAMPLES / f"{name}.py"), str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"127.0.0.1:{port}: Address already in use" in done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads memory from /proc")
def test_line_load() -> None:
    """The load program runs with 300 connections; the documentation has its figures with 10,000."""
    output = run_to_end([sys.executable, str(EXAMPLES / "line_load.py"), "300", "0.3"], seconds=120)
    assert "300 opened" in output
    assert "connections=300" in output


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_exactly_once() -> None:
    """With transactions, a program that crashes at each step writes each invoice once; without, some twice."""
    pytest.importorskip("confluent_kafka")
    output = run_to_end([sys.executable, EXAMPLES / "exactly_once.py"], seconds=100)
    crashes = [f"crashed after '{step}'" for step in ("begun", "produced", "offsets", "committed")]
    lines = output.splitlines()
    assert [line.strip().partition(":")[0] for line in lines if "records written" in line] == [*crashes, "ended"] * 2
    with_transaction, without = (line.strip() for line in lines if "invoices" in line)
    assert with_transaction == "20 orders, 20 invoices, 0 of them written more than once"
    assert without == "20 orders, 20 invoices, 8 of them written more than once"


PROGRAMS = sorted(
    path.relative_to(EXAMPLES).as_posix()
    for path in EXAMPLES.rglob("*.py")
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_explains_itself(name: str) -> None:
    """`--help` prints the usage."""
    command = [sys.executable, str(EXAMPLES / name), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")


def test_pytest_project() -> None:
    """The tests of the example project pass with kbroker's fixtures, which pytest finds as a plugin."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    output = run_to_end(command, seconds=120, cwd=EXAMPLES / "pytest_project")
    assert "2 passed" in output.splitlines()[-1]
