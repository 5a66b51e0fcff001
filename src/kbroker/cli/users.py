"""`kbroker users`: SCRAM users, on any Kafka."""

import sys
from pathlib import Path

import click

from kbroker.cli.options import FILE, CommandGroup, bootstrap_option, connect, json_option
from kbroker.cli.output import print_done, print_rows
from kbroker.client.users import DEFAULT_ITERATIONS, Users, check_name
from kbroker.common.security import scram

mechanism_option = click.option(
    "--mechanism",
    type=click.Choice(list(scram.MECHANISMS)),
    default="SCRAM-SHA-512",
    show_default=True,
    help="SCRAM mechanism.",
)


@click.group(cls=CommandGroup)
def users() -> None:
    """Add, list and remove SCRAM users."""


@users.command("list")
@bootstrap_option
@json_option
def list_users(bootstrap_server: str, as_json: bool) -> None:
    """List users with their mechanisms."""
    with connect(bootstrap_server) as cluster:
        rows = [one._asdict() for one in Users(cluster).credentials()]
    print_rows(["USER", "MECHANISM", "ITERATIONS"], rows, as_json)


@users.command()
@click.argument("name")
@bootstrap_option
@mechanism_option
@click.option(
    "--iterations",
    type=click.IntRange(4096, 16384),
    default=DEFAULT_ITERATIONS,
    show_default=True,
    help="Hash iterations; more make guessing a password slower, and each login too.",
)
@click.option(
    "--password-file",
    type=FILE,
    help="File whose first line is the password.  [default: prompt]",
)
@json_option
def add(
    name: str, bootstrap_server: str, mechanism: str, iterations: int, password_file: Path | None, as_json: bool
) -> None:
    """Add a user, or change the password.

    The password is not sent: the client salts and hashes it.
    """
    try:
        check_name(name)
    except ValueError as refused:
        raise click.BadParameter(str(refused), param_hint="NAME") from None
    if password_file is not None:
        try:
            password = password_file.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
        except UnicodeDecodeError:
            message = f"{password_file}: expected UTF-8 text, found other bytes"
            raise click.BadParameter(message, param_hint="--password-file") from None
    elif not sys.stdin.isatty():
        raise click.UsageError("expected --password-file FILE, or a terminal on which to type the password")
    else:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    if not password:
        raise click.BadParameter("expected a password, got an empty one", param_hint="--password-file")
    with connect(bootstrap_server) as cluster:
        Users(cluster).set(name, mechanism, password, iterations)
    done = {"user": name, "mechanism": mechanism, "iterations": iterations}
    print_done(done, as_json, f"{name} can log in with {mechanism}")


@users.command()
@click.argument("name")
@bootstrap_option
@mechanism_option
@json_option
def remove(name: str, bootstrap_server: str, mechanism: str, as_json: bool) -> None:
    """Remove a user's credential of one mechanism."""
    with connect(bootstrap_server) as cluster:
        Users(cluster).remove(name, mechanism)
    print_done({"user": name, "mechanism": mechanism}, as_json, f"{name} can no longer log in with {mechanism}")
