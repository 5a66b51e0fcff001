"""Options of several commands, and the connection that they describe."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from kbroker._core.clock import BaseClock
    from kbroker.client.cluster import Cluster
    from kbroker.client.http_port import HttpPort

    _IntParam = click.ParamType[int]
    _TextParam = click.ParamType[str]
else:
    _IntParam, _TextParam = click.ParamType, click.ParamType  # not generic before click 8.2

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
EXIT_DIFFERENT = 3  # exit status of a `diff` with --exit-code
COMMAND_CONFIG = "kbroker.command_config"
_NO_BREAK_HYPHEN = "\u2011"  # click breaks lines after an ordinary hyphen
FIND_TIMEOUT_S = 10.0  # time limit for finding the HTTP port, which may respond while the broker takes no requests


class _WholeWords(click.HelpFormatter):
    """Formatter of help whose lines end at spaces, not at hyphens: the name of an option is one word."""

    def write(self, string: str) -> None:
        """Append text to the help, with its hyphens."""
        super().write(string.replace(_NO_BREAK_HYPHEN, "-"))

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Append a usage line."""
        super().write_usage(prog, _unbroken(args), prefix)

    def write_text(self, text: str) -> None:
        """Append paragraphs."""
        super().write_text(_unbroken(text))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Append a list of terms and their meanings."""
        super().write_dl([(term, _unbroken(meaning)) for term, meaning in rows], col_max, col_spacing)


def _unbroken(text: str) -> str:
    return text.replace("-", _NO_BREAK_HYPHEN)


class _Context(click.Context):
    formatter_class = _WholeWords


class CommandGroup(click.Group):
    """A click group whose "No such command" names a similar one or the help, in which names of options are whole."""

    context_class = _Context

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first word names. Raises: click.UsageError."""
        if args and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            from kbroker.common.similar_names import similar_name

            similar = similar_name(args[0], self.list_commands(ctx))
            advice = f"`{ctx.command_path} --help` lists them." if similar is None else f"Did you mean '{similar}'?"
            ctx.fail(f"No such command '{args[0]}'. {advice}")
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            command.context_class = _Context
        return name, command, rest


MOST = 1e12  # maximum number of any unit up to hours: the milliseconds fit into 64 bits


class Finite(click.FloatRange):
    """A number in a range, of at most `MOST`: not NaN, which no range check refuses, and not infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a finite number within the range. Raises: BadParameter."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        if number > MOST:
            self.fail(f"{value} is above {MOST:,.0f}.", param, ctx)
        return number


class EntityName(_TextParam):
    """A name of a client or an address, as a request can carry it. Args: ``kind`` of the quota's entity."""

    name = "text"

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return a name that a request can carry. Raises: BadParameter."""
        from kbroker.common.quotas import check_name

        try:
            check_name(self._kind, value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class Duration(_IntParam):
    """A time with its unit, such as 30s or 5min, as milliseconds. Args: ``least``: minimum in milliseconds."""

    name = "time"

    def __init__(self, least: int = 0) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return a duration in milliseconds. Raises: BadParameter."""
        if isinstance(value, int):
            return value
        from kbroker.common.units import parse_duration

        try:
            found = parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if found < self._least:
            self.fail(f"expected at least {self._least} ms, got {value}", param, ctx)
        return found


def decorators(*several: Callable[[F], F]) -> Callable[[F], F]:
    """Combine options into one decorator, in the order of the help."""

    def decorate(command: F) -> F:
        for decorator in reversed(several):
            command = decorator(command)
        return command

    return decorate


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Validate on the broker; change nothing.")
exit_code_option = click.option(
    "--exit-code", is_flag=True, help=f"Exit with status {EXIT_DIFFERENT} if anything would change."
)


def command_config_option(command: F) -> F:
    """Add `--command-config`, or KBROKER_COMMAND_CONFIG, which `connect` looks up."""
    return click.option(
        "--command-config",
        type=FILE,
        envvar="KBROKER_COMMAND_CONFIG",
        show_envvar=True,
        metavar="FILE",
        expose_value=False,
        callback=_remember,
        help="Properties file for the client, as for Kafka's tools: security.protocol, sasl.*, ssl.*.",
    )(command)


def bootstrap_option(command: F) -> F:
    """Add `--bootstrap-server`, or KBROKER_BOOTSTRAP; and `--command-config`."""
    return click.option(
        "--bootstrap-server",
        "-b",
        envvar="KBROKER_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT[,...]",
        help="Brokers for the first connection, separated by commas.",
    )(command_config_option(command))


def file_and_prune(effect: str) -> Callable[[F], F]:
    """Return a decorator that adds FILE.yaml, the options of the cluster, and `--prune` with this effect."""
    return decorators(
        click.argument("path", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.yaml"),
        bootstrap_option,
        click.option("--prune", is_flag=True, help=effect),
    )


def http_options(command: F) -> F:
    """Add `--http` and `--token` of a broker's HTTP port, for `http_port`."""
    return decorators(
        click.option(
            "--http",
            "http_url",
            envvar="KBROKER_HTTP",
            show_envvar=True,
            metavar="URL",
            help="The broker's HTTP port, as http://HOST:PORT.  [default: requested from the broker]",
        ),
        click.option(
            "--token",
            envvar="KBROKER_CONSOLE_TOKEN",
            show_envvar=True,
            metavar="TEXT",
            help="The kbroker.console.token of a broker on another machine. Other users of this machine "
            "can see options: prefer the variable.",
        ),
    )(command)


def http_port(bootstrap_server: str, http_url: str | None, token: str | None) -> "HttpPort":
    """Return the HTTP port of the URL, or else the one that the broker describes over Kafka's protocol.

    Raises: HttpPortError, BrokerConnectionError; BadParameter for a malformed URL or token.
    """
    from kbroker.client.connection import BrokerTimeoutError
    from kbroker.client.http_port import HttpPort, find_http_port

    if http_url is None:
        times = {"request_timeout_s": FIND_TIMEOUT_S, "retry_timeout_s": FIND_TIMEOUT_S}
        try:
            with connect(bootstrap_server, **times) as cluster:
                http_url = find_http_port(cluster)
        except BrokerTimeoutError as error:  # the broker is perhaps short of memory, or throttles this client
            text = f"{error.message}, so its HTTP port is unknown; give --http URL"
            raise BrokerTimeoutError(error.address, text) from None
    try:
        return HttpPort(http_url, token or None)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--token" if "token" in str(error) else "--http") from None


def connect(bootstrap_server: str, **settings: Any) -> "Cluster":
    """Open a `Cluster` with the security of `--command-config`. Raises: BadParameter for a malformed address."""
    return connect_with(_command_config(), bootstrap_server, **settings)


def connect_with(
    file: Path | None,
    bootstrap_server: str,
    options: tuple[str, str] = ("--command-config", "--bootstrap-server"),
    **settings: Any,
) -> "Cluster":
    """Open a `Cluster` with the security of a properties file. Args: ``options`` of the file and the address."""
    from kbroker.client.cluster import Cluster

    open_cluster: Callable[..., Cluster] = Cluster
    if file is not None:
        from kbroker.client.security import ClientSecurity

        open_cluster = _of_properties(ClientSecurity, file, options[0]).open_cluster
    try:
        return open_cluster(bootstrap_server, client_id="kbroker-cli", **settings)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=options[1]) from None


def wall_clock() -> "BaseClock":
    """Return the clock that the caller passed as click's object, else the system's."""
    from kbroker._core.clock import BaseClock, SystemClock

    context = click.get_current_context(silent=True)
    return (None if context is None else context.find_object(BaseClock)) or SystemClock()


def client_properties() -> dict[str, str]:
    """Return the properties of `--command-config`, for other clients."""
    file = _command_config()
    return {} if file is None else _of_properties(dict, file, "--command-config")


def _remember(context: click.Context, parameter: click.Parameter, file: Path | None) -> None:
    context.meta[COMMAND_CONFIG] = file


def _command_config() -> Path | None:
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(COMMAND_CONFIG)


def _of_properties(make: Callable[[dict[str, str]], T], file: Path, option: str) -> T:
    """Return the result of ``make`` for the properties of a file. Raises: BadParameter."""
    from kbroker.common.configs.config import parse_properties

    try:
        return make(parse_properties(file.read_text(encoding="utf-8")))
    except UnicodeDecodeError:
        raise click.BadParameter(f"{file}: expected UTF-8 text, found other bytes", param_hint=option) from None
    except ValueError as error:
        raise click.BadParameter(f"{file}: {error}", param_hint=option) from None


def key_values(words: tuple[str, ...], option: str) -> dict[str, str]:
    """Return `NAME=VALUE` words as a dict; of a repeated name the last value counts. Raises: BadParameter."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"expected NAME=VALUE, got {word!r}", param_hint=option)
        found[name.strip()] = value.strip()
    return found
