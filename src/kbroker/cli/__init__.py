"""The `kbroker` command: parse and print only.

A command's module, with the client that it needs, is imported when that command is used: `--help` prints at once, and
`serve` loads neither the other commands nor a client. Commands of `pipeline` import Spark when they run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

import kbroker
from kbroker.cli.options import CommandGroup

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: Commands, each in the module of the same name, with their short help.
COMMANDS = {
    "acls": "List, add, remove and explain ACLs.",
    "cluster": "Describe a cluster; export, compare and apply its content.",
    "completion": "Print the script for completion in a shell.",
    "configs": "Show and change configs of topics, brokers and groups.",
    "console": "Serve the web console of a Kafka cluster until Ctrl-C.",
    "consume": "Print the records of topics until Ctrl-C.",
    "copy": "Copy topics to another cluster.",
    "groups": "List, describe, reset and delete groups.",
    "log": "Print, verify and repair log files, without a broker.",
    "perf": "Measure throughput and latency of a cluster.",
    "pipeline": "Work on request logs with Apache Spark.",
    "produce": "Send each line of standard input to TOPIC as a record.",
    "quotas": "Show and change the quotas of users, clients and addresses.",
    "registry": "Show schemas of a Schema Registry, and their use.",
    "requests": "Show records of a request log, from its topic or files.",
    "serve": "Run a broker until SIGTERM or Ctrl-C.",
    "storage": "Format and examine log folders, without a broker.",
    "tokens": "List, create, renew and expire delegation tokens.",
    "top": "Watch clients, topics, groups and lag of a broker.",
    "topics": "List, describe, create, alter, export and delete topics.",
    "transactions": "List, describe and abort transactions.",
    "users": "Add, list and remove SCRAM users.",
    "xray": "Show the current activity of a kbroker broker.",
}
EXIT_FAILURE, EXIT_TRY_LATER, EXIT_INTERRUPTED = 1, 75, 130


class OneLineErrors(CommandGroup):
    """A group that reports failures as one line on stderr and an exit code: 2 wrong usage, 75 try later, else 1.

    The usage follows if a word is missing or unknown.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of that name; None if there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = getattr(import_module(f"kbroker.cli.{cmd_name}"), cmd_name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin with the typed text; no command is imported."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line; report failures that users can cause in one line. A bug keeps its traceback."""
        if (getattr(sys.stdout, "encoding", None) or "utf-8").lower() != "utf-8":
            from kbroker.cli.plain_characters import make_printable

            make_printable()
        try:
            with interruptible():
                status = self._run(args, prog_name, complete_var, extra)
        except KeyboardInterrupt:
            status = EXIT_INTERRUPTED
        sys.exit(status)

    def _run(
        self, args: Sequence[str] | None, prog_name: str | None, complete_var: str | None, extra: dict[str, Any]
    ) -> int:
        try:
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as help_wanted:
            click.echo(help_wanted.format_message(), err=True)
            return help_wanted.exit_code
        except click.ClickException as error:
            status = failed(error.format_message(), error.exit_code)
            if isinstance(error, click.MissingParameter | click.NoSuchOption) and error.ctx is not None:
                click.echo(error.ctx.get_usage(), err=True)
            return status
        except (click.Abort, KeyboardInterrupt) as error:
            if isinstance(error.__context__, EOFError):  # at a prompt of `click.confirm` or `click.prompt`
                return failed("expected a line, got the end of standard input; nothing was changed", EXIT_FAILURE)
            if error.__context__ is None and isinstance(error, click.Abort):  # the user did not confirm
                return failed("not confirmed; nothing was changed", EXIT_FAILURE)
            return EXIT_INTERRUPTED
        except Exception as error:
            return status_after(error)
        return status if isinstance(status, int) else 0


@contextmanager
def interruptible() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt once, between any two instructions; a second Ctrl-C ends the process at once.

    During an import the first Ctrl-C ends the process too: the set-up code of compiled modules discards exceptions.
    No effect if Ctrl-C is ignored, or outside the main thread.
    """
    before = signal.getsignal(signal.SIGINT)
    if before in (None, signal.SIG_IGN) or threading.current_thread() is not threading.main_thread():
        yield
        return
    unraisable_before = sys.unraisablehook

    def on_unraisable(unraisable: Any) -> None:
        """End the command by SIGINT's default action, without a traceback, if Ctrl-C came where Python cannot raise."""
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        else:
            unraisable_before(unraisable)

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if _is_importing(frame):
            signal.raise_signal(signal.SIGINT)
        raise KeyboardInterrupt

    sys.unraisablehook = on_unraisable
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = unraisable_before


@contextmanager
def ended_by(*numbers: int, again: signal.Handlers = signal.SIG_DFL) -> Iterator[None]:
    """Make signals end the command like an exit.

    Args: `again`: action on further signals during the clean-up: the process ends at once, or they are ignored.

    No effect on signals that are ignored, or outside the main thread.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in numbers if is_main}
    before = {number: handler for number, handler in handlers.items() if handler not in (None, signal.SIG_IGN)}

    def end(number: int, frame: object) -> None:
        for each in before:
            signal.signal(each, again)
        raise SystemExit(128 + number)

    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def status_after(error: Exception) -> int:
    """Print one line for a failure that is not a bug; return the status. Raises: ``error`` if it is a bug."""
    if isinstance(error, BrokenPipeError):
        # the reader has closed the pipe (`| head`): print nothing, and give the flush at exit an open file
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_FAILURE
    message = user_message(error)
    if message is None:
        raise error
    return failed(message, EXIT_TRY_LATER if is_throttled(error) else EXIT_FAILURE)


def user_message(error: Exception) -> str | None:
    """Return the text of a failure that is not a bug, else None."""
    from kbroker.common.errors import KafkaError, UserError
    from kbroker.spark.errors import PACKAGES, missing_package, reason_of_store

    if isinstance(error, KafkaError | UserError):
        return str(error)
    if type(error).__module__.startswith(("py4j.", "pyspark.")):
        from kbroker.spark.failures import unreadable_file

        damaged = unreadable_file(error)
        return None if damaged is None else str(damaged)
    if isinstance(error, ModuleNotFoundError) and error.name in PACKAGES:
        return str(missing_package(error.name))
    if _is_of_delta(error):
        return f"the table's store or log: {reason_of_store(error)}"
    if isinstance(error, OSError):
        said = error.strerror or str(error)
        return f"{error.filename}: {said}" if error.filename else reason_of_store(said)
    return None


def _is_of_delta(error: Exception) -> bool:
    """Return whether delta-rs raised the error, about a table or its store."""
    exceptions = sys.modules.get("deltalake.exceptions")
    return exceptions is not None and isinstance(error, exceptions.DeltaError)


def is_throttled(error: Exception) -> bool:
    """Return whether a quota refused the request for now (error 89)."""
    from kbroker.common.errors import Errors, KafkaError

    return isinstance(error, KafkaError) and error.error is Errors.THROTTLING_QUOTA_EXCEEDED


def failed(message: str, status: int) -> int:
    """Print a message as one line on stderr; return the status."""
    from kbroker.cli.output import styled
    from kbroker.common.printable import printable

    click.echo(f"{styled('kbroker:', fg='red', bold=True)} {printable(' '.join(message.split()))}", err=True)
    return status


@click.group(cls=OneLineErrors, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(kbroker.__version__, prog_name="kbroker", message="%(prog)s %(version)s")
def cli() -> None:
    """A small Kafka-compatible broker, and tools for any Kafka."""
