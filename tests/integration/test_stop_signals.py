"""SIGTERM and Ctrl-C at any moment end a command with the right status and without a traceback; SIGQUIT ends none."""

import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kbroker.broker import Broker, StartCancelled
from kbroker.stop_signals import StopSignals
from kbroker.testing.waiting import wait_until
from tests.support.errors import raising

PROGRAM = [sys.executable, "-m", "kbroker"]
READY = re.compile(r"kbroker \S+ ready: PLAINTEXT://(\S+:\d+),")
PATIENCE_S = 20
NUMBERS = [signal.SIGTERM, signal.SIGINT]


pytestmark = pytest.mark.usefixtures("sigint_is_not_ignored")


def has_handlers(process: subprocess.Popen[str]) -> bool:
    """Return whether a process runs and has its own handler for SIGTERM, which the interpreter alone lacks."""
    if process.poll() is not None:
        return False
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def interrupted(process: subprocess.Popen[str], number: int) -> tuple[int, str, str, bool]:
    """Send a signal; return the status, the output, the error output, and whether kbroker had handlers before it.

    The interpreter discards a Ctrl-C that arrives where its start cannot raise. The signal is then sent again, as soon
    as kbroker has set its handlers.
    """
    was_ours = has_handlers(process)
    process.send_signal(number)
    if not was_ours and not has_handlers(process):
        wait_until(lambda: has_handlers(process) or process.poll() is not None, PATIENCE_S)
        process.send_signal(number)  # no effect on a process that has ended
    try:
        out, errors = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        pytest.fail(f"{process.args!r} did not end within {PATIENCE_S} s of signal {number}")
    return process.returncode, out, errors, was_ours


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only /proc says which signals are caught")
def test_a_signal_at_any_moment_ends_serve(tmp_path: Path, soak: bool) -> None:
    """A signal 0 to 500 ms after the start ends `serve` with status 0 after the ready line, else with that of the
    signal.
    """
    chance = random.Random(20261122)
    for turn in range(96 if soak else 12):
        number = NUMBERS[turn % 2]
        process = start("serve", "--listener", "127.0.0.1:0", "--data-dir", str(tmp_path))
        time.sleep(chance.uniform(0, 0.5))  # the moment is the subject of the test
        status, out, errors, was_ours = interrupted(process, number)
        if was_ours:  # otherwise the interpreter ended the process
            wanted = {0} if READY.match(out) else {-number, 128 + number}
            assert status in wanted, (turn, status, out, errors)
            assert errors.strip() == "", turn  # click ends the line of ^C
    with Broker({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}) as broker:
        assert broker.bootstrap_servers


@pytest.mark.slow
def test_a_signal_right_after_the_ready_line(soak: bool) -> None:
    """A signal between the ready line and the wait for signals stops the broker."""
    for turn in range(24 if soak else 6):
        process = start("serve", "--in-memory", "--listener", "127.0.0.1:0")
        assert process.stdout is not None
        assert READY.match(process.stdout.readline())
        status, _, errors, _ = interrupted(process, NUMBERS[turn % 2])
        assert (status, errors) == (0, ""), turn


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGQUIT")
def test_sigquit_prints_the_stacks_of_a_broker_that_continues() -> None:
    """`kill -3`, which prints the stacks of a JVM, ends no broker."""
    with start("serve", "--in-memory", "--listener", "127.0.0.1:0") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert READY.match(process.stdout.readline())
        process.send_signal(signal.SIGQUIT)
        first = process.stderr.readline()
        assert re.match(r"(Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):", first)
        process.terminate()
        assert "serving.py" in process.stderr.read()
    assert process.returncode == 0


def test_ctrl_c_ends_the_health_check() -> None:
    """Ctrl-C in a health check that waits ends it without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE_S)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "kbroker.client.health", address, "--timeout", str(PATIENCE_S)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process, silent.accept()[0]:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (-signal.SIGINT, "")


def test_no_signal_is_lost_before_the_wait() -> None:
    """A signal that another thread handles without interrupting a read ends the wait."""
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
    """After the wait, the signal handlers and the wake-up descriptor are restored."""
    before = [signal.getsignal(number) for number in NUMBERS]
    seen = []
    with StopSignals() as stop:
        stop.on_first = lambda: seen.append("first")
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        stop.wait()
        assert (seen, stop.number, stop.has_come()) == (["first"], signal.SIGTERM, True)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL  # a second Ctrl-C ends the process at once
    assert before == [signal.getsignal(number) for number in NUMBERS]
    descriptor = signal.set_wakeup_fd(-1)
    assert descriptor == -1


def test_a_late_failure_writes_to_no_other_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the signals are no longer handled, another file may have the number of the descriptor."""
    with StopSignals() as stop:
        pass
    monkeypatch.setattr("os.write", raising(OSError("written")))
    stop.ask()
    assert stop.has_come()


@pytest.mark.slow
@pytest.mark.parametrize("words", [("consume", "t"), ("produce", "t"), ("topics", "list")], ids=lambda words: words[0])
def test_ctrl_c_shows_no_traceback(words: tuple[str, ...], soak: bool) -> None:
    """At any moment, the status of an interrupted command is 130, or that of the signal."""
    chance = random.Random(20261122)
    with Broker() as broker:
        create = [*PROGRAM, "topics", "create", "t", "-b", broker.bootstrap_servers]
        subprocess.run(create, check=True, capture_output=True, timeout=PATIENCE_S)
        for turn in range(32 if soak else 5):
            process = start(*words, "-b", broker.bootstrap_servers)
            time.sleep(chance.uniform(0, 0.4))
            status, _, errors, was_ours = interrupted(process, signal.SIGINT)
            if was_ours:
                assert status in (0, 130, -signal.SIGINT), (turn, status, errors)
                assert errors.strip() == "", turn


def test_ctrl_c_during_an_import_is_not_lost(tmp_path: Path) -> None:
    """The command ends although the import of a compiled module discards KeyboardInterrupt."""
    (tmp_path / "discards.py").write_text(
        "import signal\ntry:\n    signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt:\n    pass\n"
    )
    program = "from kbroker.cli import interruptible\nwith interruptible():\n    import discards\n    print('went on')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_failure_before_the_ready_line_is_reported() -> None:
    """A broker whose metadata log fails at the end of its start ends with the reason, as one that fails later."""
    program = (
        "from kbroker import serving\nfrom kbroker.broker import Broker\nstart = Broker.start\n"
        "def failing(broker):\n    start(broker)\n    broker.failure = 'the disk burns'\n    broker.on_failure()\n"
        "Broker.start = failing\nsettings = {'listeners': 'PLAINTEXT://127.0.0.1:0', 'kbroker.in.memory': 'true'}\n"
        "try:\n    serving.serve(lambda: settings)\nexcept serving.ServeError as error:\n    print(error.status, error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 the disk burns\n", "")


def test_a_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    """A cancelled start releases the folder, and the next broker starts in it."""
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
# A traceback with a file of kbroker. Until `__main__` has set its handler, its first lines may be interrupted.
OUR_TRACEBACK = re.compile(r'/kbroker/(?!__init__\.py"|__main__\.py", line \d+, in (<module>|leave_on)\n)[\w/]+\.py"')


@pytest.mark.slow
@pytest.mark.parametrize("command", [[str(CONSOLE_SCRIPT)], PROGRAM], ids=["script", "module"])
def test_ctrl_c_at_any_millisecond_of_the_start_shows_no_traceback_of_ours(command: list[str], soak: bool) -> None:
    """A Ctrl-C 10 to 150 ms after the start shows no traceback of kbroker's files.

    Before kbroker has set its handler, the interpreter ends as for every program: with a KeyboardInterrupt or a fatal
    error during initialization. Or it reports that it has discarded the exception, and continues.
    """
    if not Path(command[0]).exists():
        pytest.skip("needs the script that an installation makes")
    for moment_ms in range(10, 151, 1 if soak else 10):
        process = subprocess.Popen(
            [*command, "serve", "--in-memory", "--listener", "127.0.0.1:0"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        time.sleep(moment_ms / 1000)  # the moment is the subject of the test
        status, out, errors, was_ours = interrupted(process, signal.SIGINT)
        if errors.strip():
            assert not was_ours, (moment_ms, errors)
            assert "KeyboardInterrupt" in errors or errors.startswith("Fatal Python error: "), (moment_ms, errors)
            assert not OUR_TRACEBACK.search(errors), (moment_ms, errors)
        else:
            wanted = {0} if READY.match(out) else {-signal.SIGINT, 128 + signal.SIGINT}
            assert status in wanted, (moment_ms, status, out)


def test_ctrl_c_between_the_import_and_main_shows_no_traceback(tmp_path: Path) -> None:
    """A signal between the import and the call of `main` in an installed script shows no traceback."""
    script = tmp_path / "kbroker"
    script.write_text(
        "import signal, sys\nfrom kbroker.__main__ import main\nsignal.raise_signal(signal.SIGINT)\nsys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
