"""`kbroker console`: the web console of any Kafka cluster, until Ctrl-C."""

from __future__ import annotations

import re

import click

from kbroker.cli.options import bootstrap_option, client_properties
from kbroker.cli.record_options import RegistryOptions, registry_options

DEFAULT_LISTEN = "127.0.0.1:8080"
TOKEN = r"[!-~]{16,1024}"  # characters that a header can carry, and the allowed length


@click.command()
@bootstrap_option
@click.option(
    "--listen",
    default=DEFAULT_LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    help="Address of the pages; port 0 picks a free port. Browsers of other machines need a token.",
)
@click.option("--edit", is_flag=True, help="Allow changes; otherwise the pages only show.")
@click.option(
    "--token",
    envvar="KBROKER_CONSOLE_TOKEN",
    show_envvar=True,
    metavar="TEXT",
    help="Token that browsers must send, at least 16 characters. Other users of this machine can see options: prefer "
    "the variable.  [default: generated if --command-config has credentials]",
)
@registry_options
def console(bootstrap_server: str, listen: str, edit: bool, token: str | None, registry: RegistryOptions) -> None:
    """Serve the web console of a Kafka cluster until Ctrl-C.

    The pages show and change what Kafka's protocol offers, with the credentials of --command-config. A broker of
    kbroker serves more pages itself, at its HTTP port.
    """
    from kbroker.common.loggers import write_lines
    from kbroker.stop_signals import StopSignals

    try:
        from kbroker.console.server import ConsoleServer
    except ModuleNotFoundError as error:
        if error.name != "jinja2":
            raise
        raise click.ClickException("the console needs jinja2: pip install 'kbroker[console]'") from None

    host, port = _address(listen)
    if token is not None and re.fullmatch(TOKEN, token) is None:
        raise click.BadParameter("expected 16 to 1024 characters of ASCII without spaces", param_hint="--token")
    schemas = registry.client()
    properties = client_properties()
    try:
        server = ConsoleServer(bootstrap_server, properties, host, port, token, edit, registry=schemas)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--bootstrap-server or --command-config") from None
    write_lines()
    with StopSignals() as signals:
        try:
            server.start()
            click.echo(f"The console of {bootstrap_server} is at {server.url}")
            if server.token is not None and token is None:
                click.echo(f"Token for signing in: {server.token}")
            signals.wait()
        except OSError as error:
            raise click.ClickException(str(error.strerror or error)) from None
        finally:
            server.stop()


def _address(text: str) -> tuple[str, int]:
    """Return host and port of `--listen`. Raises: BadParameter."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise click.BadParameter(f"expected HOST:PORT, got {text!r}", param_hint="--listen")
    return host.removeprefix("[").removesuffix("]"), int(port)
