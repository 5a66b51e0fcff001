"""SIGTERM and Ctrl-C at any moment end a command in order: the status is right, and there is no traceback."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kbroker.broker import Broker, StartCancelled
from kbroker.stop_signals import StopSignals

PROGRAM = [sys.executable, "-m", "kbroker"]
READY = re.compile(r"kbroker \S+ ready: PLAINTEXT://(\S+:\d+),")
PATIENCE_S = 20
NUMBERS = [signal.SIGTERM, signal.SIGINT]


pytestmark = pytest.mark.usefixtures("sigint_is_not_ignored")


def is_caught(pid: int, number: int) -> bool:
    """Whether a process has its own handler for a signal: the interpreter has none for SIGTERM."""
    found = re.search(r"^SigCgt:\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def interrupted(process: subprocess.Popen[str], number: int) -> tuple[int, str, str, bool]:
    """Send a signal; return status, output and error output, and whether our code ran already."""
    was_ours = is_caught(process.pid, signal.SIGTERM)
    process.send_signal(number)
    try:
        out, errors = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        if was_ours:
            process.kill()
            process.communicate()
            pytest.fail(f"{process.args!r} did not end within {PATIENCE_S} s of signal {number}")
        # the interpreter discards a Ctrl-C that comes where it cannot raise, and our handler was not there yet
        process.send_signal(number)
        out, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, errors, was_ours


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only /proc says which signals are caught")
def test_a_signal_at_any_moment_ends_serve(tmp_path: Path) -> None:
    """From 0 to 500 ms after the start: 0 where the ready line was printed, else the status of the signal."""
    chance = random.Random(20261122)
    for turn in range(24):
        number = NUMBERS[turn % 2]
        process = start("serve", "--listener", "127.0.0.1:0", "--data-dir", str(tmp_path))
        time.sleep(chance.uniform(0, 0.5))  # what is tested is the moment, no condition
        status, out, errors, was_ours = interrupted(process, number)
        if was_ours:  # else it was the interpreter that ended
            wanted = {0} if READY.match(out) else {-number, 128 + number}
            assert status in wanted, (turn, status, out, errors)
            assert errors.strip() == "", turn  # click ends the line of ^C
    with Broker({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}) as broker:
        assert broker.bootstrap_servers


@pytest.mark.slow
def test_a_signal_right_after_the_ready_line() -> None:
    """The line says that a signal stops it: also one that comes before the wait for signals has begun."""
    for turn in range(12):
        process = start("serve", "--in-memory", "--listener", "127.0.0.1:0")
        assert process.stdout is not None
        assert READY.match(process.stdout.readline())
        status, _, errors, _ = interrupted(process, NUMBERS[turn % 2])
        assert (status, errors) == (0, ""), turn


def test_no_signal_is_lost_before_the_wait() -> None:
    """A signal that interrupts no read, as another thread takes it, ends the wait all the same."""
    with StopSignals() as stop:
        given_up = threading.Timer(PATIENCE_S, stop.ask)
        given_up.start()
        taker = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
        taker.start()
        stop.wait()
        given_up.cancel()
        taker.join()
        assert stop.number == signal.SIGTERM


def test_a_signal_before_the_wait_ends_it_at_once() -> None:
    """And handlers are as before afterwards, the wake-up descriptor too."""
    before = [signal.getsignal(number) for number in NUMBERS]
    seen = []
    with StopSignals() as stop:
        stop.on_first = lambda: seen.append("first")
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        stop.wait()
        assert (seen, stop.number, stop.has_come()) == (["first"], signal.SIGTERM, True)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL  # a second Ctrl-C does not wait
    assert before == [signal.getsignal(number) for number in NUMBERS]
    descriptor = signal.set_wakeup_fd(-1)
    assert descriptor == -1


@pytest.mark.slow
@pytest.mark.parametrize("words", [("consume", "t"), ("produce", "t"), ("topics", "list")], ids=lambda words: words[0])
def test_ctrl_c_shows_no_traceback(words: tuple[str, ...]) -> None:
    """At any moment of a command that waits or works: 130, or the end that the signal itself brings."""
    chance = random.Random(20261122)
    with Broker() as broker:
        create = [*PROGRAM, "topics", "create", "t", "-b", broker.bootstrap_servers]
        subprocess.run(create, check=True, capture_output=True, timeout=PATIENCE_S)
        for turn in range(8):
            process = start(*words, "-b", broker.bootstrap_servers)
            time.sleep(chance.uniform(0, 0.4))
            status, _, errors, was_ours = interrupted(process, signal.SIGINT)
            if was_ours:
                assert status in (0, 130, -signal.SIGINT), (turn, status, errors)
                assert errors.strip() == "", turn


def test_ctrl_c_during_an_import_is_not_lost(tmp_path: Path) -> None:
    """The set-up code of a compiled module discards exceptions, KeyboardInterrupt too; a command went on then."""
    (tmp_path / "discards.py").write_text(
        "import signal\ntry:\n    signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt:\n    pass\n"
    )
    program = "from kbroker.cli import interruptible\nwith interruptible():\n    import discards\n    print('went on')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    """`cancel_start` before or within a start ends it; the folder is free, and starts the next time."""
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
    with Broker(settings):
        pass
    broker = Broker(settings)
    broker.cancel_start()
    with pytest.raises(StartCancelled):
        broker.start()
    broker.stop()
    with Broker(settings) as again:
        assert again.bootstrap_servers


CONSOLE_SCRIPT = Path(sys.executable).with_name("kbroker")


@pytest.mark.slow
@pytest.mark.parametrize("command", [[str(CONSOLE_SCRIPT)], PROGRAM], ids=["script", "module"])
def test_ctrl_c_at_any_millisecond_of_the_start_shows_no_traceback_of_ours(command: list[str], soak: bool) -> None:
    """From 10 to 150 ms after the start. Before our first line it is the interpreter that ends, as it does for every
    program: with KeyboardInterrupt, whose traceback names no file of ours."""
    if not Path(command[0]).exists():
        pytest.skip("needs the script that an installation makes")
    for moment_ms in range(10, 151, 1 if soak else 5):
        process = subprocess.Popen(
            [*command, "serve", "--in-memory", "--listener", "127.0.0.1:0"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        time.sleep(moment_ms / 1000)  # what is tested is the moment, no condition
        status, out, errors, _ = interrupted(process, signal.SIGINT)
        if "Traceback" in errors:
            assert errors.rstrip().endswith("KeyboardInterrupt"), errors
            assert not re.search(r'/kbroker/[\w/]+\.py"', errors), errors
        else:
            assert errors.strip() == "", (moment_ms, errors)
            wanted = {0} if READY.match(out) else {-signal.SIGINT, 128 + signal.SIGINT}
            assert status in wanted, (moment_ms, status, out)


def test_ctrl_c_between_the_import_and_main_shows_no_traceback(tmp_path: Path) -> None:
    """The script of an installation has other lines in between: a signal there showed a traceback."""
    script = tmp_path / "kbroker"
    script.write_text(
        "import signal, sys\nfrom kbroker.__main__ import main\nsignal.raise_signal(signal.SIGINT)\nsys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
