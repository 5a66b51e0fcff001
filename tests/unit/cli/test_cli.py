"""Command line: parsing, one-line errors, and modules that are not imported."""

import functools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import click
import pytest

import kbroker
from kbroker import serving
from kbroker.cli import COMMANDS, cli, user_message
from kbroker.cli.consume import _timestamp_ms
from kbroker.cli.output import MAX_WIDTH, print_table
from kbroker.decoders.record_json import json_bytes
from tests.support import cli as cli_support
from tests.support.cli import refusal
from tests.support.ports import free_run

HELP = """\
Usage: kbroker [OPTIONS] COMMAND [ARGS]...

  A small Kafka-compatible broker, and tools for any Kafka.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
  acls          List, add, remove and explain ACLs.
  cluster       Describe a cluster; export, compare and apply its content.
  completion    Print the script for completion in a shell.
  configs       Show and change configs of topics, brokers and groups.
  console       Serve the web console of a Kafka cluster until Ctrl-C.
  consume       Print the records of topics until Ctrl-C.
  copy          Copy topics to another cluster.
  groups        List, describe, reset and delete groups.
  log           Print, verify and repair log files, without a broker.
  perf          Measure throughput and latency of a cluster.
  pipeline      Work on request logs with Apache Spark.
  produce       Send each line of standard input to TOPIC as a record.
  quotas        Show and change the quotas of users, clients and addresses.
  registry      Show schemas of a Schema Registry, and their use.
  requests      Show records of a request log, from its topic or files.
  serve         Run a broker until SIGTERM or Ctrl-C.
  storage       Format and examine log folders, without a broker.
  tokens        List, create, renew and expire delegation tokens.
  top           Watch clients, topics, groups and lag of a broker.
  topics        List, describe, create, alter, export and delete topics.
  transactions  List, describe and abort transactions.
  users         Add, list and remove SCRAM users.
  xray          Show the current activity of a kbroker broker.
"""


run = functools.partial(cli_support.run, None)


def subcommands(group: click.Group) -> dict[str, click.Command]:
    """Return the commands of a group by name."""
    ctx = click.Context(group)
    found = {name: group.get_command(ctx, name) for name in group.list_commands(ctx)}
    return {name: command for name, command in found.items() if command is not None}


def test_a_report_asks_a_secured_broker(tmp_path: Path) -> None:
    """`pipeline report` reads --command-config for its request of the broker's quotas."""
    config = tmp_path / "client.properties"
    config.write_text("security.protocol=NONE\n")
    words = ["pipeline", "report", str(tmp_path), "-o", str(tmp_path / "page.html")]
    words += ["--bootstrap-server", "127.0.0.1:1"]
    assert "NONE" in refusal(run(*words, "--command-config", str(config)), 2)


def test_help() -> None:
    """`kbroker --help` shows every command with its purpose."""
    assert ((result := run("--help")).exit_code, result.stdout) == (0, HELP)


def every_command(group: click.Group = cli, prefix: str = "") -> Iterator[str]:
    """Yield the words of every command, including those in groups."""
    for name, command in subcommands(group).items():
        yield prefix + name
        if isinstance(command, click.Group):
            yield from every_command(command, f"{prefix}{name} ")


@pytest.mark.parametrize("command", list(every_command()))
def test_every_command_has_help(command: str) -> None:
    """Each command and each option has help, and no short help is truncated."""
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert "..." not in result.stdout.partition("Commands:")[2]
    assert COMMANDS.get(command) in (None, subcommands(cli).get(command, cli).get_short_help_str(100))
    found: click.Command = cli
    for word in command.split():
        assert isinstance(found, click.Group)
        found = subcommands(found)[word]
    assert [p.name for p in found.params if isinstance(p, click.Option) and not (p.help or p.hidden)] == []


def test_every_output_can_be_json() -> None:
    """Every command except `serve`, `console` and `completion` has --json."""
    commands = subcommands(cli)
    leaves = [
        c
        for name, c in commands.items()
        if not isinstance(c, click.Group) and name not in ("serve", "console", "completion")
    ]
    groups = [c for c in commands.values() if isinstance(c, click.Group)]
    for group in groups:  # including the nested groups
        groups += [c for c in group.commands.values() if isinstance(c, click.Group)]
        leaves += [c for c in group.commands.values() if not isinstance(c, click.Group)]
    assert len(leaves) >= 26
    assert [c.name for c in leaves if "as_json" not in [p.name for p in c.params]] == []


def test_version() -> None:
    assert run("--version").stdout == f"kbroker {kbroker.__version__}\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("nope", "No such command 'nope'. `kbroker --help` lists them."),
        ("topics create", "expected TOPIC or --from, got neither"),
        ("topics create t --partitions 0", "Invalid value for '--partitions' / '-p': 0 is not in the range x>=1."),
        ("consume t --timeout nan", "Invalid value for '--timeout': nan is not a finite number."),
        ("consume t --timeout inf", "Invalid value for '--timeout': inf is not a finite number."),
        ("pipeline compact t --retention nan", "Invalid value for '--retention': nan is not a finite number."),
        ("pipeline compact t --retention 1e308", "Invalid value for '--retention': 1e308 is above 1,000,000,000,000."),
        ("pipeline usage t --date 2026-1-2",
         "Invalid value for '--date': expected a day such as 2026-01-31, got '2026-1-2'"),
        ("topics create t --config x", "Invalid value for --config: expected NAME=VALUE, got 'x'"),
        ("topics list -b a:b", "Invalid value for --bootstrap-server: expected host:port, got 'a:b'"),
        ("produce t --acks 2", "Invalid value for '--acks': '2' is not one of '0', '1', 'all', '-1'."),
        ("produce t --acks 1 --idempotent", "Invalid value for --idempotent: expected --acks all, got --acks 1"),
        ("produce t --header x", "Invalid value for --header: expected NAME=VALUE, got 'x'"),
        ("consume t --from-beginning --offset 1",
         "expected at most one of --from-beginning, --offset, --timestamp and --last"),
        ("consume t --end --end-offset 1", "expected at most one of --end, --end-offset, --end-timestamp and --last"),
        ("consume t u --group g", "expected --group with one TOPIC and without --regex"),
        ("consume t --grep (", "Invalid value for --grep: expected a regular expression, got '(': missing ), "
         "unterminated subpattern at position 0"),
        ("consume t --format plain",
         "Invalid value for '--format': expected value, key-value, full or a template such as '%k %s\\n', got 'plain'"),
        ("consume t --format %x",
         "Invalid value for '--format': unknown token %x; known: %s %S %R %k %K %T %h %t %p %o %%"),
        ("consume t --decode avro",
         "Invalid value for --decode: the decoder avro needs a Schema Registry: give --registry URL"),
        ("consume t --registry ftp://u:p@x",
         "Invalid value for --registry: expected http(s)://HOST:PORT, got 'ftp://x'"),
        ("registry list", "expected --registry URL or the variable KBROKER_REGISTRY"),
        ("registry show", "expected either SUBJECT, with or without --version, or --id"),
        ("consume t --timestamp soon", "Invalid value for --timestamp: expected ms since 1970 or a time such as "
         "2026-01-31T12:00:00, got 'soon'"),
        ("requests tail --api Fech",
         "Invalid value for --api: expected an API such as Fetch, got 'Fech'; did you mean Fetch?"),
        ("requests tail --api nonsense", "Invalid value for --api: expected an API such as Fetch, got 'nonsense'"),
        ("serve --listener x", "Invalid value for --listener: expected host:port, got 'x'"),
        (
            "serve --listener ::1:2",
            "Invalid value for --listener: expected host:port, got '::1:2'; an IPv6 host needs brackets: [::1]:9092",
        ),
        ("serve --set x", "Invalid value for --set: expected NAME=VALUE, got 'x'"),
        ("quotas set --user a producer_byte_rate=1 producer_byte_rate=1",
         "duplicate producer_byte_rate: give each quota once"),
        ("serve --set num.partitons=4",
         "Invalid value for --set: unknown config num.partitons; did you mean num.partitions?"),
        ("quotas set --user a producer_byterate=1",
         "Invalid value for KEY=NUMBER: unknown quota 'producer_byterate'; did you mean producer_byte_rate?"),
        ("serve --config nix.conf", "Invalid value for --config: nix.conf: No such file or directory"),
        ("serve nix.conf", "Invalid value for FILE: nix.conf: No such file or directory"),
        ("serve a.conf --config b.conf", "expected one properties file, got a.conf and --config b.conf"),
        ("users add alice", "expected --password-file FILE, or a terminal on which to type the password"),
        ("produce t --encode avro", "expected --registry URL or the variable KBROKER_REGISTRY"),
        ("acls remove --topic t --json", "expected --yes beside --json"),
        ("consume t --json --format full", "expected only one of --json and --format, got both"),
        ("completion csh", "Invalid value for 'bash|zsh|fish': 'csh' is not one of 'bash', 'zsh', 'fish'."),
        ("acls list --match", "expected --topic, --group, --transactional-id, --cluster ..., got none"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line_and_status_2(args: str, message: str) -> None:
    """Wrong usage is reported in one line with status 2, before anything is attempted."""
    assert message == refusal(run(*args.split()), 2)


def test_a_filter_of_no_part_of_a_record_is_wrong_usage() -> None:
    pytest.importorskip("jmespath")
    names = "key, value, headers, topic, partition, offset, timestamp"
    assert refusal(run("consume", "t", "--filter", "amount"), 2) == (
        f"Invalid value for --filter: expected one of {names}, got 'amount'"
    )


def test_a_filter_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jmespath.exceptions", None)
    monkeypatch.setitem(sys.modules, "jmespath", None)
    assert refusal(run("consume", "t", "--filter", "value")) == (
        'a filter expression needs jmespath, which is not installed: pip install "kbroker[decoders]"'
    )


@pytest.mark.parametrize(
    "args", ["topics list", "topics describe", "topics create t", "topics delete t", "produce t", "consume t"]
)
def test_no_broker_is_one_line_and_status_1(args: str) -> None:
    """If no broker listens, every command reports it in one line with status 1."""
    unused = f"127.0.0.1:{free_run(1)}"
    assert refusal(run(*args.split(), env={"KBROKER_BOOTSTRAP": unused})) == f"{unused}: connection refused"


def test_a_bug_keeps_its_traceback() -> None:
    """Failures that a user can cause are reported in one line, and bugs keep their traceback."""
    assert user_message(RuntimeError("x")) is None
    assert user_message(FileNotFoundError(2, "No such file", "f")) == "f: No such file"


def test_a_command_without_credentials_says_which_it_needs() -> None:
    """The message names the missing credentials, which the error of delta-rs does not."""
    url = "http://169.254.169.254/latest/api/token"
    said = user_message(OSError(f"Generic S3 error\n \x1b[31m\u21b3\x1b[0m Error performing PUT {url} in 18 ms"))
    reason = f"Generic S3 error: Error performing PUT {url} in 18 ms"
    assert said is not None
    assert said.startswith(f"this command has no credentials for the object store ({reason}): set AWS_ACCESS_KEY_ID ")


# ---- output


def test_tables_align(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers are aligned right, text left; missing values are a dash and lists are joined."""
    print_table(["NAME", "N"], [["a", 5], ["long", None], ["b", [1, 2]]])
    assert capsys.readouterr().out == "NAME  N\na     5\nlong  -\nb     1,2\n"
    print_table(["NAME", "N"], [["a", 5], ["long", 100], ["x", None]])
    assert capsys.readouterr().out == "NAME    N\na       5\nlong  100\nx       -\n"
    print_table(["NAME"], [])
    assert capsys.readouterr().out == "NAME\n"


def test_a_very_long_name_widens_its_own_row_only(capsys: pytest.CaptureFixture[str]) -> None:
    """One name of 32,767 bytes does not pad the other rows, which once made 65 MB of spaces of 2,000 quotas."""
    print_table(["NAME", "N"], [["x" * 32_767, 5], ["short", 6]])
    _, long, short = capsys.readouterr().out.splitlines()
    assert long == f"{'x' * 32_767}  5"
    assert short == f"{'short':<{MAX_WIDTH}}  6"


def test_bytes_in_json() -> None:
    """Bytes that are not UTF-8 are base64 under another key, so that the two forms are distinct."""
    assert json_bytes("k", None) == {"k": None}
    assert json_bytes("k", "é".encode()) == {"k": "é"}
    assert json_bytes("k", b"\xff") == {"k_base64": "/w=="}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("1769860800000", 1769860800000), ("2026-01-31T12:00:00Z", 1769860800000),
     ("2026-01-31T13:00:00.250+01:00", 1769860800250), ("2026-01-31T12:00:00", 1769860800000),
     ("2026-01-31T12:00:00.5", 1769860800500), ("1969-12-31T23:59:59.999", 0)],
)  # fmt: skip
def test_timestamps(text: str, expected: int, in_another_zone: None) -> None:
    """A start time is in milliseconds or ISO 8601, and in UTC if it has no zone.

    Times before 1970 become 0: the timestamp -1 means the end of the log to ListOffsets.
    """
    assert expected == _timestamp_ms(text, "--timestamp")


# ---- produce: lines


class Input:
    """Standard input that arrives in pieces."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = list(chunks)

    def read1(self, size: int) -> bytes:
        return self.chunks.pop(0) if self.chunks else b""

    def fileno(self) -> int:
        raise OSError


def test_lines_are_cut_at_their_ends_only() -> None:
    """A line may arrive in pieces, end in CRLF, be empty, or be the last without an end; None marks each pause."""
    from kbroker.cli.produce import _lines

    pieces = Input(b" a \nb", b"c\r\n\n", b"\xff", b"d")
    assert list(_lines(pieces)) == [b" a ", None, b"bc", b"", None, None, None, b"\xffd"]  # type: ignore[arg-type]


def test_a_line_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is that of a response: a longer record could not be read again."""
    from kbroker.cli import produce

    monkeypatch.setattr("kbroker.cli.produce.MAX_FRAME_BYTES", 5)
    lines = produce._lines(Input(b"ab\ncde", b"fg", b"h", b"i"))  # type: ignore[arg-type]
    assert [next(lines), next(lines), next(lines)] == [b"ab", None, None]
    with pytest.raises(click.ClickException, match="expected lines of at most 5 bytes"):
        next(lines)


# ---- serve


class FakeBroker:
    """Replacement of the broker that counts its stops."""

    made: ClassVar["list[FakeBroker]"] = []
    failure: Exception | None = None

    def __init__(self, properties: dict[str, str]) -> None:
        self.properties = properties
        self.stops = 0
        self.made.append(self)

    def start(self) -> None:
        if self.failure is not None:
            raise self.failure

    def cancel_start(self) -> None:
        pass

    def stop(self) -> None:
        self.stops += 1

    def describe(self) -> str:
        signal.raise_signal(signal.SIGTERM)
        return "PLAINTEXT://127.0.0.1:1234, data in memory"


class FakeStartError(Exception):
    pass


class FakeCancelled(Exception):
    pass


@pytest.fixture
def fake_broker(monkeypatch: pytest.MonkeyPatch) -> type[FakeBroker]:
    module = ModuleType("kbroker.broker")
    module.__dict__.update(Broker=FakeBroker, BrokerStartError=FakeStartError, StartCancelled=FakeCancelled)
    monkeypatch.setitem(sys.modules, "kbroker.broker", module)
    monkeypatch.setattr(FakeBroker, "made", [])
    monkeypatch.setattr(FakeBroker, "failure", None)
    return FakeBroker


def test_serve_passes_settings_on_and_the_later_source_wins(fake_broker: type[FakeBroker], tmp_path: Path) -> None:
    """Each source overrides the sources before it: the file, the environment, the options, --set.

    The ready line is one line.
    """
    config = tmp_path / "server.properties"
    config.write_text("log.dirs=/file\nnum.partitions=2\nnum.io.threads=3\nnum.network.threads=4\n")
    result = run(
        *["serve", "--config", str(config), "--listener", "127.0.0.1:0", "--listener", "X://[::1]:1"],
        *["--data-dir", str(tmp_path), "--set", "num.io.threads=5", "--set", "a=b=c"],
        env={"KBROKER_CFG_NUM_PARTITIONS": "7"},
    )
    assert (result.exit_code, result.stderr) == (0, "")
    ready = f"kbroker {kbroker.__version__} ready: PLAINTEXT://127.0.0.1:1234, data in memory\n"
    assert ready == result.stdout
    (broker,) = fake_broker.made
    assert broker.stops == 1
    wanted = {
        "listeners": "PLAINTEXT://127.0.0.1:0,X://[::1]:1",
        "log.dirs": str(tmp_path),
        "num.partitions": "7",
        "num.io.threads": "5",
        "num.network.threads": "4",
        "a": "b=c",
    }
    assert wanted == {k: v for k, v in broker.properties.items() if k in wanted}


def test_serve_takes_a_file_without_an_option(fake_broker: type[FakeBroker], tmp_path: Path) -> None:
    """As in Kafka's script, the file is a plain argument, which the plain form of the command line reads too."""
    config = tmp_path / "server.properties"
    config.write_text("num.partitions=2\n")
    run("serve", str(config), "--in-memory")
    properties = fake_broker.made[0].properties
    assert (properties["num.partitions"], properties["kbroker.in.memory"]) == ("2", "true")
    words = [str(config), "--set", "a=b", "--in-memory"]
    assert serving.plain_options(words) == serving.Options([], None, str(config), {"a": "b"}, True)
    assert serving.plain_options([*words, "--config", str(config)]) is None
    assert serving.plain_options([str(config), str(config)]) is None
    assert serving.plain_options([*words, "--set", "a=c"]) == serving.Options([], None, str(config), {"a": "c"}, True)


def test_serve_into_a_folder_without_a_name(fake_broker: type[FakeBroker]) -> None:
    """`--data-dir "$UNSET"` does not mean the current folder: the config is an empty string, which is invalid."""
    run("serve", "--data-dir", "")
    assert fake_broker.made[0].properties["log.dirs"] == ""


def test_headers_of_produce_are_the_bytes_of_the_shell() -> None:
    """Header values may be bytes that are not UTF-8, like lines of the input."""
    from kbroker.cli.produce import _header

    assert _header("name=" + b"\xff\xfe".decode("utf-8", "surrogateescape")) == ("name", b"\xff\xfe")


def test_serve_leaves_signal_handlers_as_they_were(fake_broker: type[FakeBroker]) -> None:
    """A program that calls the command keeps its signal handlers."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    run("serve")
    assert before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))


def test_failed_start_is_one_line(fake_broker: type[FakeBroker], monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed start is reported in one line with status 1, and an invalid value with its key and status 2."""
    from kbroker.common.configs.config_def import ConfigError

    monkeypatch.setattr(FakeBroker, "failure", FakeStartError("port 9092 is in use"))
    assert refusal(run("serve"), 1) == "port 9092 is in use"
    monkeypatch.setattr(FakeBroker, "failure", ConfigError("num.io.threads", "0", "too few", "1 or more"))
    assert "num.io.threads" in refusal(run("serve"), 2)


# ---- log


def test_dump_and_verify_name_what_they_cannot_read(tmp_path: Path) -> None:
    """An unknown kind of file or folder is reported in one line; a wrong folder has no "0 damaged places"."""
    (tmp_path / "x.txt").touch()
    assert "x.txt" in refusal(run("log", "dump", str(tmp_path / "x.txt")), 1)
    (tmp_path / "backup-2026").mkdir()
    assert refusal(run("log", "verify", str(tmp_path))).startswith(f"{tmp_path}: expected a data folder or that of")
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n")
    assert run("log", "verify", str(tmp_path)).stdout == "0 damaged places\n"


def test_damage_found_is_status_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage has its own exit code for scripts, and repaired damage has status 0."""
    found = SimpleNamespace(path=tmp_path, position=5, size_bytes=7, offset=3, problem="torn", repair="")
    monkeypatch.setattr("kbroker.cli.log.verify_folder", lambda path, repair: [found])
    result = run("log", "verify", str(tmp_path))
    assert (3, f"{tmp_path} at byte 5, 7 bytes, records from offset 3 on: torn\n1 damaged place\n") == (
        result.exit_code,
        result.stdout,
    )
    found.repair = "cut"
    assert run("log", "verify", str(tmp_path)).exit_code == 0


def test_dump_as_json_is_a_document_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry of a dump is one JSON document with its file."""
    monkeypatch.setattr("kbroker.cli.log.dump_file", lambda path, **_: iter([{"kind": "batch", "count": 2}]))
    (tmp_path / "a.log").touch()
    result = run("log", "dump", "--json", str(tmp_path / "a.log"))
    assert {"file": str(tmp_path / "a.log"), "kind": "batch", "count": 2} == json.loads(result.stdout)


# ---- what is imported


def modules_of(*args: str) -> set[str]:
    """Return the modules that a command adds to those of the interpreter's start."""
    code = (
        "import sys\nbefore = set(sys.modules)\nfrom kbroker.cli import cli\n"
        f"try: cli({list(args)!r})\nfinally: print(*set(sys.modules) - before, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stderr.split())


@pytest.mark.slow
def test_help_imports_nothing_heavy() -> None:
    """`kbroker --help` imports no module of the broker or the client and no large package."""
    loaded = modules_of("--help")
    assert not {m for m in loaded if m.startswith("kbroker.") and not m.startswith("kbroker.cli")}
    assert not loaded & {"numpy", "cramjam", "asyncio", "socket", "sqlite3", "dataclasses", "importlib.metadata"}


def test_a_command_loads_no_other() -> None:
    """Only the module of the requested command is imported."""
    loaded = modules_of("serve", "--help")
    commands = {m for m in loaded if m.startswith("kbroker.cli.")}
    assert commands == {"kbroker.cli.serve", "kbroker.cli.options"}


@pytest.mark.parametrize(("platform", "warns"), [("linux", False), ("darwin", False), ("win32", True)])
def test_serve_says_what_the_system_cannot_do(
    fake_broker: type[FakeBroker], monkeypatch: pytest.MonkeyPatch, platform: str, warns: bool
) -> None:
    """On Windows one warning precedes the ready line; other systems have none."""
    unsupported = serving.unsupported_on(platform)
    assert (unsupported is not None) == warns
    monkeypatch.setattr(serving, "unsupported_on", lambda _: unsupported)
    result = run("serve", "--in-memory")
    assert result.exit_code == 0
    lines = result.stderr.splitlines()
    assert lines == ([f"Warning: {unsupported}"] if warns else [])
    assert not warns or "Windows" in lines[0]
