"""Imported modules and start time of kbroker, and the end or fork of a process with a running broker."""

import os
import subprocess
import sys

import pytest

from tests.support import poller
from tests.support.broker import run_to_end

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "kbroker.in.memory": True,
    "kbroker.poller": poller.WANTED or "auto",
}
IN_MEMORY = repr(SETTINGS)


def seconds(*arguments: str) -> float:
    """Return the CPU time of an interpreter, the least of five runs, as a busy machine adds time."""
    taken = []
    for _ in range(5):
        begun = os.times()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True, timeout=60)
        ended = os.times()
        taken.append(ended.children_user + ended.children_system - begun.children_user - begun.children_system)
    return min(taken)


def loaded(program: str) -> set[str]:
    """Return the modules that a program imports in addition to those of the interpreter."""
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"], check=True, capture_output=True, text=True
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}\nprint(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(done.stdout.split()) - set(bare.stdout.split())


def test_import_is_next_to_nothing() -> None:
    """`import kbroker` loads its own package file only, and takes less than 1 ms of the promised 30 ms."""
    assert loaded("import kbroker") == {"kbroker"}
    assert seconds("-c", "import kbroker") - seconds("-c", "pass") < 0.1


def test_help_loads_no_broker() -> None:
    """`kbroker --help` loads no broker, client or compiled module, to end within 150 ms on an idle machine."""
    modules = loaded("from kbroker.cli import cli\ntry:\n    cli(['--help'])\nexcept SystemExit:\n    pass")
    heavy = ("kbroker.broker", "kbroker.client", "kbroker._core", "kbroker.protocol", "kbroker.log", "numpy", "asyncio")
    assert sorted(m for m in modules if m.startswith(heavy)) == []
    assert seconds("-m", "kbroker", "--help") < 1.0


def test_a_broker_starts_without_coordinators() -> None:
    """The coordinators of groups, transactions and shares are loaded with the first request that needs them."""
    modules = loaded(f"from kbroker.broker import Broker\nwith Broker({IN_MEMORY}):\n    pass")
    assert [one for one in modules if one.startswith("kbroker.coordinator.") and one.endswith("_coordinator")] == []


@pytest.mark.parametrize(
    "ending", ["pass", "sys.exit(0)", "raise SystemExit(0)", "del broker; import gc; gc.collect()"]
)
def test_the_interpreter_ends_with_a_running_broker(ending: str) -> None:
    """The interpreter ends without a crash or an error while connections are open."""
    program = f"""
import socket, sys, time
from kbroker.broker import Broker
broker = Broker({IN_MEMORY}); broker.start()
host, _, port = broker.bootstrap_servers.rpartition(":")
clients = [socket.create_connection((host, int(port))) for _ in range(3)]
clients[0].sendall(b"\\0\\0\\1\\0half")
{ending}
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_end_takes_less_than_five_seconds() -> None:
    """The exit handlers with two running brokers take less than five seconds."""
    program = f"""
import atexit, sys, time
atexit.register(lambda: print(time.perf_counter() - began))
from kbroker.broker import Broker
brokers = [Broker({IN_MEMORY}) for _ in range(2)]
for broker in brokers: broker.start()
began = time.perf_counter()
"""
    output = run_to_end([sys.executable, "-c", program], seconds=60)
    assert float(output) < 5


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_forked_child_runs_and_ends() -> None:
    """A forked child of a busy broker's process can run a broker and exit, and the parent continues to serve."""
    program = f"""
import os, socket, struct, sys, threading
from kbroker._core.timer.timing_wheel import Timer
from kbroker.broker import Broker
def ask(broker):
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as one:
        one.sendall(struct.pack(">ihhihi", 14, 3, 1, 1, 0, 0))
        assert one.recv(4096)
broker = Broker({IN_MEMORY}); broker.start()
done = threading.Event()
def busy():
    while not done.is_set(): ask(broker)
threads = [threading.Thread(target=busy) for _ in range(2)]
for thread in threads: thread.start()
for turn in range(10):
    child = os.fork()
    if child == 0:
        timer, ran = Timer(), []
        timer.add(1, lambda: ran.append(1))
        while not ran: timer.advance(100)
        if turn % 2:
            with Broker({IN_MEMORY}) as own: ask(own)
        if turn % 3 == 0: broker.stop()
        if turn % 4 == 0: os._exit(0)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0, turn
    ask(broker)
done.set()
for thread in threads: thread.join()
ask(broker)
broker.stop()
"""
    run_to_end([sys.executable, "-W", "ignore", "-c", program], seconds=120)


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_forked_child_keeps_no_client_connected() -> None:
    """After a stop, clients read the end of the stream and the ports are free, although a forked child still runs."""
    program = f"""
import os, signal, socket, struct, sys
from kbroker.broker import Broker
broker = Broker({{**{SETTINGS!r}, "kbroker.metrics.listener": "127.0.0.1:0"}}); broker.start()
port = int(broker.bootstrap_servers.rpartition(":")[2])
metrics_port = int(broker.metrics_url.rpartition(":")[2])
one = socket.create_connection(("127.0.0.1", port), timeout=10)
def ask():
    one.sendall(struct.pack(">ihhihi", 14, 3, 1, 1, 0, 0))
    assert one.recv(4096)
ask()
child = os.fork()
if child == 0:
    broker.stop()       # the broker is the parent's: no client is disconnected
    signal.pause()
try:
    for _ in range(20): ask()
    broker.stop()
    assert one.recv(1) == b"", "no end of file"
    for each in (port, metrics_port):
        try:
            socket.create_connection(("127.0.0.1", each), timeout=2)
            raise AssertionError(f"port {{each}} still listens")
        except ConnectionRefusedError: pass
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", each)); other.listen()
finally:
    os.kill(child, signal.SIGKILL); os.waitpid(child, 0)
"""
    run_to_end([sys.executable, "-W", "ignore", "-c", program], seconds=120)
