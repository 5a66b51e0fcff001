"""Options that several commands share, and the connection they lead to."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def bootstrap_option(command: F) -> F:
    """`--bootstrap-server`, or KBROKER_BOOTSTRAP."""
    return click.option(
        "--bootstrap-server",
        "-b",
        envvar="KBROKER_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT[,...]",
        help="Brokers to ask first.",
    )(command)


def connect(bootstrap_server: str, **settings: Any) -> "Cluster":
    """Open a `Cluster`; a malformed address is wrong usage."""
    from kbroker.client.cluster import Cluster

    try:
        return Cluster(bootstrap_server, client_id="kbroker-cli", **settings)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--bootstrap-server") from None


def key_values(words: tuple[str, ...], option: str) -> dict[str, str]:
    """`NAME=VALUE` words as a dict."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"expected NAME=VALUE, got {word!r}", param_hint=option)
        found[name.strip()] = value.strip()
    return found
