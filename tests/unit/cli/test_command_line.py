"""Command line for people: suggestions, usage, completion, colours, units."""

import functools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from kbroker.cli import ended_by
from kbroker.cli.output import print_table, styled
from kbroker.common.quota_limits import limit_text, parse_limit
from kbroker.serving import plain_options
from tests.support import cli as cli_support
from tests.support import need
from tests.support.cli import refusal

run = functools.partial(cli_support.run, None)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("topic", "No such command 'topic'. Did you mean 'topics'?"),
        ("quota list", "No such command 'quota'. Did you mean 'quotas'?"),
        ("topics lst", "No such command 'lst'. Did you mean 'list'?"),
        ("groups describ", "No such command 'describ'. Did you mean 'describe'?"),
        ("nothing-like-it", "No such command 'nothing-like-it'. `kbroker --help` lists them."),
        ("quotas nothing-like-it", "No such command 'nothing-like-it'. `kbroker quotas --help` lists them."),
    ],
)
def test_a_wrong_command_names_a_similar_one(words: str, expected: str) -> None:
    """A misspelt command in the root or in a group gets a suggestion."""
    assert refusal(run(*words.split()), 2) == expected


@pytest.mark.parametrize("words", [(), ("consume",), ("groups", "reset"), ("pipeline", "recommend")])
@pytest.mark.parametrize("columns", [60, 80, 100])
def test_help_breaks_no_name_of_an_option(
    words: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line of a help text ends in the middle of a word with hyphens, at any width."""
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = run(*words, "--help").stdout.splitlines()
    assert [line for line in lines if line.endswith("-")] == []
    assert "\u2011" not in "".join(lines)


@pytest.mark.parametrize("command", ["produce", "latency"])
def test_the_size_of_measured_records_is_limited(command: str) -> None:
    """A record size above the limit is wrong usage, not a MemoryError."""
    result = run("perf", command, "t", "-b", "127.0.0.1:1", "--record-size", "99999999999")
    assert "99999999999 is not in the range" in refusal(result, 2)


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("topics delete", "Usage: kbroker topics delete [OPTIONS] TOPIC..."),
        ("consume", "Usage: kbroker consume [OPTIONS] TOPIC..."),
        ("quotas set --user a", "Usage: kbroker quotas set [OPTIONS] KEY=NUMBER..."),
        ("topics create --partitons 3 t", "Usage: kbroker topics create [OPTIONS] [TOPIC]..."),
    ],
)
def test_a_missing_argument_shows_the_usage(words: str, usage: str) -> None:
    """The usage is the second line, after the message about the missing or unknown word."""
    result = run(*words.split())
    assert result.exit_code == 2
    assert result.stderr.splitlines()[1:] == [usage]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("acls add --topic t --operation Read --allow alice", "for --allow: expected User:NAME, got 'alice'"),
        ("acls add --topic t --operation Read --deny alice", "for --deny: expected User:NAME, got 'alice'"),
        ("acls explain bob --topic t --operation Read", "for PRINCIPAL: expected User:NAME, got 'bob'"),
        ("acls explain User:bob --topic t --operation Read --host 1.2.3.400", "for --host: expected an address,"),
        ("groups list --state Stabel", "for '--state': 'Stabel' is not one of 'empty',"),
        ("groups list --type clasic", "for '--type': 'clasic' is not one of 'classic',"),
        ("users add Jörg", "for NAME: expected a name of ASCII characters,"),
    ],
)
def test_a_wrong_value_names_its_option(words: str, message: str) -> None:
    """The value is rejected before the command connects to a broker."""
    assert f"Invalid value {message}" in refusal(run(*words.split(), "-b", "127.0.0.1:1"), 2)


def test_a_folder_of_a_broker_in_memory_is_refused() -> None:
    """A broker in memory would write nothing to the folder that the same command names."""
    words = ["--data-dir", "data", "--in-memory"]
    result = run("serve", *words)
    message = "kbroker: expected only one of --in-memory and --data-dir, got both\n"
    assert (result.exit_code, result.stderr) == (2, message)
    assert plain_options(words) is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("security.protocl=SASL_SSL", "unknown property security.protocl; did you mean security.protocol?"),
        (
            "ssl.trustore.location=ca.pem",
            "unknown property ssl.trustore.location; did you mean ssl.truststore.location?",
        ),
    ],
)
def test_a_misspelled_client_property_is_refused(tmp_path: Path, line: str, message: str) -> None:
    """A client that ignored the property would connect in plaintext, or trust other certificates."""
    file = tmp_path / "client.properties"
    file.write_text(f"ssl.keystore.password=x\nacks=all\nssl.provider=y\n{line}\n")
    result = run("topics", "list", "--command-config", str(file), "-b", "127.0.0.1:1")
    assert refusal(result, 2) == f"Invalid value for --command-config: {file}: {message}"


@pytest.mark.parametrize(
    ("words", "option"),
    [("topics list", "--command-config"), ("groups reset g", "--from-file")],
)
def test_a_file_that_is_not_utf_8(tmp_path: Path, words: str, option: str) -> None:
    """The error names the option and the file instead of Python's codec."""
    file = tmp_path / "bytes"
    file.write_bytes(b"\xd0\x00")
    result = run(*words.split(), option, str(file), "-b", "127.0.0.1:1")
    assert refusal(result, 2) == f"Invalid value for {option}: {file}: expected UTF-8 text, found other bytes"


def test_a_password_that_is_not_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"p\xe4ss\n")
    result = run("users", "add", "bob", "--password-file", str(file), "-b", "127.0.0.1:1")
    assert refusal(result, 2) == f"Invalid value for --password-file: {file}: expected UTF-8 text, found other bytes"


def test_a_group_is_read_as_it_says() -> None:
    """--group excludes the options that set a position."""
    for option in (["--offset", "1"], ["--timestamp", "0"], ["--partition", "0"]):
        assert "kbroker groups reset" in refusal(run("consume", "t", "--group", "g", *option), 2)


def test_colours_only_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured output has no colours, and NO_COLOR disables them on a terminal."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert styled("x", bold=True) == click.style("x", bold=True)
    print_table(["NAME"], [["a"]])
    assert capsys.readouterr().out == "NAME\na\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("x", bold=True) == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert styled("x", bold=True) == "x", "TERM=dumb disables colours"


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("producer_byte_rate", 1048576.0, "1 MiB/s"),
        ("consumer_byte_rate", 1500000.0, "1500000 B/s"),
        ("request_percentage", 12.5, "12.5 %"),
        ("controller_mutation_rate", 5.0, "5/s"),
        ("connection_creation_rate", 30.0, "30/s"),
        ("unknown", 3.5, "3.5"),
    ],
)
def test_limits_are_read_back(key: str, value: float, text: str) -> None:
    """`quotas set` accepts limits in the form in which they are printed."""
    assert limit_text(key, value) == text
    assert parse_limit(key, text) == value


# ---- completion

COMPLETE = "from kbroker.__main__ import main; main()"


def completed(shell: str, words: str, typed: str) -> list[str]:
    """Return the program's response to a shell's completion, without types and help."""
    env = {**os.environ, "_KBROKER_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": typed}
    if shell == "bash":
        env["COMP_CWORD"] = str(len(words.split()))
    done = subprocess.run([sys.executable, "-c", COMPLETE], env=env, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    if shell == "zsh":
        return lines[1::3]
    return [line.partition(",")[2].partition("\t")[0] for line in lines]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str) -> None:
    """`kbroker completion SHELL` prints a script that the shell can parse."""
    script = run("completion", shell)
    assert (script.exit_code, script.stderr) == (0, "")
    assert "_KBROKER_COMPLETE" in script.stdout
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=script.stdout, text=True, capture_output=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_bash_completes(tmp_path: Path) -> None:
    """In a real bash commands and options are completed, and topics are not if no broker listens."""
    need.program("bash")
    program = tmp_path / "kbroker"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{COMPLETE}' \"$@\"\n")
    program.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(run("completion", "bash").stdout)

    def complete(*words: str) -> list[str]:
        line = f"""
            source {script}
            COMP_WORDS=(kbroker {" ".join(repr(word) for word in words)}); COMP_CWORD={len(words)}
            _kbroker_completion kbroker
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "KBROKER_BOOTSTRAP": "127.0.0.1:1"}
        done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return done.stdout.split()

    assert complete("to") == ["tokens", "top", "topics"]
    assert complete("topics", "de") == ["delete", "describe"]
    assert complete("topics", "list", "--int") == ["--internal"]
    assert complete("topics", "describe", "") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_are_answered(shell: str) -> None:
    """The program answers the requests of the shells' scripts, without the shell."""
    typed = "1" if shell == "zsh" else "to"
    assert completed(shell, "kbroker to", typed) == ["tokens", "top", "topics"]


def test_signals_during_the_clean_up_are_ignored() -> None:
    """The clean-up of a terminal ends whatever signals arrive meanwhile; later signals have their own action."""
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    done = []

    def command() -> None:
        with ended_by(*numbers, again=signal.SIG_IGN):
            try:
                signal.raise_signal(signal.SIGUSR1)
            finally:
                for number in numbers:
                    signal.raise_signal(number)
                    done.append(number)

    with pytest.raises(SystemExit) as ended:
        command()
    assert done == [*numbers]
    assert ended.value.code == 128 + signal.SIGUSR1
    assert [signal.getsignal(number) for number in numbers] == before
