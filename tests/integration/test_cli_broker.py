"""`kbroker serve` as a process, and commands that connect to the broker."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

import kbroker
from tests.support.broker import run_to_end

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "kbroker"]
READY = re.compile(rf"kbroker {re.escape(kbroker.__version__)} ready: PLAINTEXT://(127\.0\.0\.1:\d+), .+\n")
PATIENCE_S = 60


class Served:
    """`kbroker serve` process whose ready line has been read."""

    started: ClassVar["list[Served]"] = []

    def __init__(self, *args: str, listener: str = "127.0.0.1:0") -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "serve", "--listener", listener, *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(self)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.errors: list[str] = []
        # a full pipe would block the broker
        self._reader = threading.Thread(target=self.errors.extend, args=(self.process.stderr,), daemon=True)
        self._reader.start()
        killer = threading.Timer(PATIENCE_S, self.process.kill)
        killer.start()
        self.ready_line = self.process.stdout.readline()
        killer.cancel()
        match = READY.fullmatch(self.ready_line)
        if match is None:
            self.end(signal.SIGKILL)
            pytest.fail(f"no ready line: {self.ready_line!r}, {''.join(self.errors)}", pytrace=False)
        self.address = match[1]

    def end(self, number: int) -> int:
        """Send a signal, wait, and return the exit status; `rest` has the output after the ready line."""
        self.process.send_signal(number)
        status = self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.rest = self.process.stdout.read()
        self._reader.join(PATIENCE_S)
        self.process.stdout.close()
        self.process.stderr.close()
        return status

    def run(self, *args: str, stdin: str = "", status: int = 0) -> str:
        """Run a command that connects to this broker, and return its output."""
        environment = {**os.environ, "KBROKER_BOOTSTRAP": self.address}
        done = subprocess.run(
            [*COMMAND, *args], input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, env=environment
        )
        assert done.returncode == status, (args, done)
        if status:
            assert len(done.stderr.splitlines()) == 1, done.stderr
            return done.stderr
        assert done.stderr == ""
        return done.stdout


@pytest.fixture(autouse=True)
def _none_left() -> Iterator[None]:
    """End every broker that a test left running."""
    yield
    while Served.started:
        broker = Served.started.pop()
        if broker.process.returncode is None:
            broker.end(signal.SIGKILL)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served("--data-dir", str(tmp_path / "data"))


def test_a_tour(served: Served) -> None:
    """Topics can be created, listed, described, written, read and deleted, with text and JSON output."""
    assert served.run("topics", "create", "greetings", "--partitions", "3", "--config", "retention.ms=99999") == (
        "created greetings with 3 partitions\n"
    )
    assert served.run("topics", "list") == "TOPIC      PARTITIONS  REPLICAS\ngreetings           3         1\n"
    listed = json.loads(served.run("topics", "list", "--json"))
    assert listed == [{"name": "greetings", "partitions": 3, "replication_factor": 1}]
    sent = served.run("produce", "greetings", "-K", ":", "--partition", "1", "--json", stdin="k1:one\nk2:two\nk3:\n")
    assert json.loads(sent) == {
        "topic": "greetings",
        "records": 3,
        "partitions": [{"partition": 1, "records": 3, "first_offset": 0, "last_offset": 2}],
    }
    (described,) = json.loads(served.run("topics", "describe", "greetings", "--json"))
    assert described["configs"] == {"retention.ms": "99999"}
    assert [(p["start_offset"], p["end_offset"]) for p in described["partitions"]] == [(0, 0), (0, 3), (0, 0)]
    assert len(described["id"]) == 22
    assert served.run("topics", "describe", "greetings").startswith(f"greetings  id {described['id']}  configs ")
    consume = ("consume", "greetings", "--max-messages")
    assert served.run(*consume, "3", "--from-beginning") == "one\ntwo\n\n"
    assert served.run(*consume, "1", "--offset", "1", "--partition", "1", "--format", "key-value") == "k2:two\n"
    document = json.loads(served.run(*consume, "1", "--from-beginning", "--json"))
    assert (document["key"], document["value"], document["offset"], document["headers"]) == ("k1", "one", 0, [])
    at = str(document["timestamp_ms"])
    assert served.run(*consume, "1", "--timestamp", at) == "one\n"
    assert served.run("consume", "greetings", "--timeout", "0.2") == ""
    assert served.run("topics", "delete", "greetings") == "deleted greetings\n"
    assert served.run("topics", "list", "--json") == "[]\n"


def test_failures_are_one_line(served: Served) -> None:
    """A request that the broker refuses ends with status 1 and one line with Kafka's error name."""
    served.run("topics", "create", "t", "-p", "1")
    for args, message in (
        (("topics", "create", "t"), "TOPIC_ALREADY_EXISTS"),
        (("topics", "create", "a/b"), "INVALID_TOPIC_EXCEPTION"),
        (("topics", "create", "x", "--config", "nix=1"), "INVALID_CONFIG"),
        (("topics", "create", "x", "--replication-factor", "3"), "INVALID_REPLICATION_FACTOR"),
        (("topics", "delete", "nope"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("topics", "describe", "nope"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("consume", "nope", "-n", "1"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("consume", "t", "--partition", "7"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("consume", "t", "--offset", "7", "-n", "1"), "OFFSET_OUT_OF_RANGE"),
    ):
        assert served.run(*args, status=1).startswith(f"kbroker: {message}: ")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(served: Served, codec: str) -> None:
    """Lines that `produce` sent with each codec are printed unchanged by `consume`."""
    lines = "".join(f"line {i}\n" for i in range(5000))
    served.run("topics", "create", "t", "-p", "1")
    served.run("produce", "t", "--codec", codec, "--idempotent", "--batch-size", "5000", stdin=lines)
    assert served.run("consume", "t", "--from-beginning", "-n", "5000") == lines


def test_no_input(served: Served) -> None:
    """`produce` without input sends nothing, creates no topic, and fails if the topic does not exist."""
    served.run("topics", "create", "t", "-p", "1")
    assert "UNKNOWN_TOPIC_OR_PARTITION: topic 'nope'" in served.run("produce", "nope", status=1)
    environment = {**os.environ, "KBROKER_BOOTSTRAP": served.address}
    done = subprocess.run(
        [*COMMAND, "produce", "t"], input="", capture_output=True, text=True, timeout=PATIENCE_S, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "nope" not in served.run("topics", "list")


def test_a_reader_that_leaves_is_no_error(served: Served) -> None:
    """`consume` ends without an error message when the reader of its output closes the pipe."""
    served.run("topics", "create", "t", "-p", "1")
    served.run("produce", "t", stdin="x" * 100 + "\n" + "line\n" * 50_000)
    command = f"'{sys.executable}' -m kbroker consume t --from-beginning -b {served.address} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr) == ("x" * 100 + "\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors of a shell")
def test_closed_streams_are_no_bug(served: Served) -> None:
    """Commands write to closed streams as to the null device: a daemon may have been started with none."""
    served.run("topics", "create", "t", "-p", "1")
    served.run("produce", "t", stdin="line\n")
    for words in (
        "topics list >&-",
        "consume t --from-beginning -n 1 >&-",
        "produce t <&-",
        "topics list <&- >&- 2>&-",
    ):
        command = f"'{sys.executable}' -m kbroker {words} -b {served.address}"
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=PATIENCE_S)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), words


def test_kill_9_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """After kill -9, every acknowledged record is served from the same folder, and the offsets continue."""
    first = Served("--data-dir", str(tmp_path))
    first.run("topics", "create", "t", "-p", "1", "--config", "retention.ms=123456789")
    first.run("produce", "t", "--acks", "all", stdin="one\ntwo\n")
    (before,) = json.loads(first.run("topics", "describe", "t", "--json"))
    first.end(signal.SIGKILL)
    second = Served("--data-dir", str(tmp_path))
    try:
        (after,) = json.loads(second.run("topics", "describe", "t", "--json"))
        assert (after["id"], after["configs"]) == (before["id"], {"retention.ms": "123456789"})
        assert "offsets 2 to 2" in second.run("produce", "t", stdin="three\n")
        assert second.run("consume", "t", "--from-beginning", "-n", "3") == "one\ntwo\nthree\n"
    finally:
        assert second.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_signals_stop_in_order(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM and Ctrl-C end the broker with status 0 and no output, and free its folder."""
    broker = Served("--data-dir", str(tmp_path))
    broker.run("topics", "create", "t", "-p", "1")
    assert broker.end(number) == 0
    assert broker.rest == ""
    assert "Traceback" not in "".join(broker.errors)
    again = Served("--data-dir", str(tmp_path))
    assert again.end(signal.SIGTERM) == 0


def refused(*args: str) -> tuple[int, str]:
    done = subprocess.run([*COMMAND, "serve", *args], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return done.returncode, line


def test_second_broker_on_the_folder_is_refused(served: Served, tmp_path: Path) -> None:
    """A second broker on a folder is refused with the name of the folder, and the first continues to run."""
    status, line = refused("--listener", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    assert status == 1
    assert str(tmp_path / "data") in line
    served.run("topics", "list")


def test_port_in_use_is_one_line(served: Served, tmp_path: Path) -> None:
    """A port in use is refused with one line that names the address and the ways out."""
    status, line = refused("--listener", served.address, "--data-dir", str(tmp_path / "other"))
    assert status == 1
    assert served.address in line
    assert line.endswith("; stop the program that uses it, or choose another port")


def test_bad_value_names_key_value_and_what_is_allowed(tmp_path: Path) -> None:
    """An invalid setting is refused with the name of the config and its value."""
    status, line = refused("--data-dir", str(tmp_path), "--set", "num.io.threads=many")
    assert status == 2
    assert "num.io.threads" in line
    assert "many" in line


def test_folder_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    """A data folder below a file is refused with one line that names the file."""
    (tmp_path / "file").touch()
    status, line = refused("--listener", "127.0.0.1:0", "--data-dir", str(tmp_path / "file" / "data"))
    assert status == 1
    assert str(tmp_path / "file") in line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a file that is always full")
def test_a_ready_line_that_cannot_be_printed() -> None:
    """The message names standard output, since the disks of the data have space."""
    command = [*COMMAND, "serve", "--in-memory", "--listener", "127.0.0.1:0"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    expected = "kbroker: cannot print the ready line on standard output: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, expected)


@pytest.mark.skipif(sys.platform != "linux", reason="a name that is not UTF-8")
def test_a_folder_whose_name_is_not_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder name that is not UTF-8 is printed with an escape where the locale is one of UTF-8."""
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:strict")
    folder = tmp_path / "\udcff"
    served = Served("--data-dir", str(folder))
    assert served.end(signal.SIGTERM) == 0
    assert served.ready_line.endswith(f"data in {tmp_path}/\\udcff\n")
    done = subprocess.run([*COMMAND, "storage", "check", str(folder)], capture_output=True, text=True)
    assert (done.stderr, f"{tmp_path}/\\udcff" in done.stdout) == ("", True)


def test_in_memory_leaves_nothing(tmp_path: Path) -> None:
    """A broker with `--in-memory` serves records."""
    broker = Served("--in-memory")
    assert broker.ready_line.endswith(" in memory\n")
    broker.run("topics", "create", "t", "-p", "1")
    broker.run("produce", "t", stdin="one\n")
    assert broker.run("consume", "t", "--from-beginning", "-n", "1") == "one\n"
    assert broker.end(signal.SIGTERM) == 0


def test_settings_come_from_a_properties_file(tmp_path: Path) -> None:
    """The broker starts with a file of Kafka's properties; `--set` takes precedence over the file."""
    config = tmp_path / "server.properties"
    config.write_text(f"log.dirs={tmp_path / 'data'}\nnum.partitions=4\ndefault.replication.factor=1\n")
    broker = Served("--config", str(config), "--set", "num.partitions=5")
    broker.run("topics", "create", "t")
    assert [t["partitions"] for t in json.loads(broker.run("topics", "list", "--json"))] == [5]
    assert broker.end(signal.SIGTERM) == 0
    assert (tmp_path / "data" / "t-4").is_dir()


def test_segments_can_be_dumped_and_verified(tmp_path: Path) -> None:
    """`log dump` shows the batch of a stopped broker's segment, and `log verify` finds no damage."""
    broker = Served("--data-dir", str(tmp_path))
    broker.run("topics", "create", "t", "-p", "1")
    broker.run("produce", "t", stdin="one\ntwo\n")
    assert broker.end(signal.SIGTERM) == 0
    segment = tmp_path / "t-0" / ("0" * 20 + ".log")
    rows = [json.loads(line) for line in broker.run("log", "dump", "--json", str(segment)).splitlines()]
    assert [(row["baseOffset"], row["lastOffset"]) for row in rows if row["kind"] == "batch"] == [(0, 1)]
    assert broker.run("log", "verify", str(tmp_path)) == "0 damaged places\n"


def test_serve_never_imports_numpy(tmp_path: Path) -> None:
    """A broker that serves requests does not import numpy, which would need 20 MiB."""
    code = (
        "import sys, threading, os, signal\n"
        "from kbroker.cli import cli\n"
        "try: cli(sys.argv[1:], prog_name='kbroker')\n"
        "finally: print('numpy' in sys.modules, file=sys.stderr)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", "--listener", "127.0.0.1:0", "--data-dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    match = READY.fullmatch(process.stdout.readline())
    if match is None:
        process.kill()
        pytest.fail(f"no ready line: {process.communicate()}")
    environment = {**os.environ, "KBROKER_BOOTSTRAP": match[1]}
    for args in (["produce", "t"], ["consume", "t", "--from-beginning", "-n", "1"], ["topics", "describe"]):
        run_to_end([*COMMAND, *args], stdin="x\n", seconds=PATIENCE_S, env=environment)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors.splitlines()[-1]) == (0, "False")
