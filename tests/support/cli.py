"""Command line run in this process: the output or the failure of a command."""

from collections.abc import Mapping
from typing import Any

from click.testing import CliRunner, Result

from kbroker.cli import cli
from tests.support.fake_broker import FakeBroker


def run(
    broker: FakeBroker | None, *args: str, charset: str = "utf-8", env: Mapping[str, str] | None = None, **settings: Any
) -> Result:
    """Run a command; ``broker`` becomes its default broker."""
    environment = {**({"KBROKER_BOOTSTRAP": broker.bootstrap} if broker else {}), **(env or {})}
    return CliRunner(charset=charset).invoke(cli, args, prog_name="kbroker", env=environment, **settings)


def printed(broker: FakeBroker | None, *args: str, **settings: Any) -> str:
    """Return the output of a command that succeeds."""
    result = run(broker, *args, **settings)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def refusal(result: Result, status: int = 1, stdout: str = "") -> str:
    """Return the one line of a failure without the usage that follows it."""
    assert (result.exit_code, result.stdout) == (status, stdout)
    (line,) = result.stderr.partition("Usage: ")[0].splitlines()
    assert line.startswith("kbroker: ")
    return line.removeprefix("kbroker: ")
