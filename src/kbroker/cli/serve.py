"""`kbroker serve`: a broker until a signal says stop."""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

import kbroker
from kbroker.cli.options import key_values
from kbroker.cli.stop_signals import StopSignals

if TYPE_CHECKING:
    from kbroker.server.broker import Broker
    from kbroker.testing.control import ControlServer

CONFIG_STATUS, START_STATUS = 2, 1


@click.command()
@click.option(
    "--listener",
    multiple=True,
    metavar="[NAME://]HOST:PORT",
    help="Address to bind; port 0 takes a free one. Repeatable.",
)
@click.option("--data-dir", type=click.Path(file_okay=False), help="Folder of the data: log.dirs.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A server.properties with Kafka's names.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="One setting; wins over everything else. Repeatable."
)
@click.option("--in-memory", is_flag=True, help="Keep nothing after the stop.")
def serve(
    listener: tuple[str, ...],
    data_dir: str | None,
    config_file: Path | None,
    settings: tuple[str, ...],
    in_memory: bool,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C, then stop it in order.

    The status is 0 then; before the ready line a signal cancels the start, and the status is the signal's (130, 143).

    Later sources win: defaults, --config, environment (KAFKA_LOG_DIRS, KBROKER_CFG_LOG_DIRS), the options, --set.
    """
    with StopSignals() as stop:
        given = key_values(settings, "--set")
        properties = _from_file_and_environment(config_file)
        if listener:
            properties["listeners"] = ",".join(_listener(word) for word in listener)
        if data_dir is not None:
            properties["log.dirs"] = data_dir
        if in_memory:
            properties["kbroker.in.memory"] = "true"
        properties.update(given)
        was_ready = _run(properties, stop)
    if not was_ready and stop.number is not None:
        signal.raise_signal(stop.number)  # the status is that of a program which the signal has ended


def _listener(word: str) -> str:
    """`host:port` means PLAINTEXT; the rest is checked where `listeners` is."""
    address = word if "://" in word else f"PLAINTEXT://{word}"
    host, colon, port = address.partition("://")[2].rpartition(":")
    if not colon or not port.isdigit() or (":" in host and not host.startswith("[")):
        raise click.BadParameter(f"expected host:port, got {word!r}", param_hint="--listener")
    return address


def _from_file_and_environment(config_file: Path | None) -> dict[str, str]:
    from kbroker.common.config import from_environment, parse_properties

    properties: dict[str, str] = {}
    if config_file is not None:
        try:
            properties.update(parse_properties(config_file.read_text(encoding="utf-8")))
        except OSError as error:
            raise click.BadParameter(f"{config_file}: {error.strerror}", param_hint="--config") from None
        except UnicodeDecodeError:
            raise click.BadParameter(f"{config_file}: not UTF-8 text", param_hint="--config") from None
    properties.update(from_environment(os.environ))
    return properties


def _run(properties: dict[str, str], stop: StopSignals) -> bool:
    """Start, say so, wait, stop. Return whether it was ready: a signal before that ends the start."""
    from kbroker.common.config_def import ConfigError
    from kbroker.server.broker import Broker, BrokerStartError, StartCancelled

    broker: Broker
    control: ControlServer | None = None
    unsupported = unsupported_on(sys.platform)
    if unsupported is not None:
        click.echo(f"Warning: {unsupported}", err=True)
    try:
        if properties.get("kbroker.control.listener"):
            from kbroker.testing.control import controlled_broker

            broker, control = controlled_broker(properties, stop.ask)
        else:
            broker = Broker(properties)
        stop.on_first = broker.cancel_start
        if stop.has_come():
            return False
        broker.start()
        if control is not None:
            _open(control, broker)
    except StartCancelled:
        broker.stop()  # its temporary folder, where it has one
        return False
    except ConfigError as error:
        raise _failure(error.explain(), CONFIG_STATUS) from None
    except BrokerStartError as error:
        raise _failure(str(error), START_STATUS) from None
    try:
        if stop.has_come():
            return False
        click.echo(f"kbroker {kbroker.__version__} ready: {broker.describe()}")
        if control is not None:
            click.echo(f"kbroker {control.describe()}")
        stop.wait()
        return True
    finally:
        if control is not None:
            control.stop()
        broker.stop()


def unsupported_on(platform: str) -> str | None:
    """Return what a broker cannot do on a system (``sys.platform``), in one line; None where nothing is known."""
    if platform == "win32":
        return (
            "on Windows a segment that is open can be neither rolled nor deleted, so retention, compaction and "
            "deleting topics fail; keep what matters on Linux"
        )
    return None


def _open(control: "ControlServer", broker: "Broker") -> None:
    from kbroker.server.broker import BrokerStartError

    try:
        control.start()
    except OSError as error:
        broker.stop()
        raise BrokerStartError(f"cannot open the control port: {error.strerror or error}") from None


def _failure(message: str, status: int) -> click.ClickException:
    failure = click.ClickException(message)
    setattr(failure, "exit_code", status)  # noqa: B010  a class variable for click's stubs
    return failure
