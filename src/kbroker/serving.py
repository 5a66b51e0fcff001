"""The process of a broker, which `kbroker serve` runs: read the properties, start, wait for a signal, stop.

Without click: ``plain_options`` reads the plain form of `kbroker serve`, without help and errors. ``kbroker.cli`` reads
all other command lines, and a broker then starts 25 ms later.
"""

from __future__ import annotations

import errno
import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import kbroker
from kbroker.common import loggers
from kbroker.common.addresses import wrong_host_port
from kbroker.common.open_files import more_open_files
from kbroker.stop_signals import StopSignals

if TYPE_CHECKING:
    from pathlib import Path

    from kbroker.broker import Broker
    from kbroker.testing.cluster import EmbeddedCluster
    from kbroker.testing.control import ControlServer

CONFIG_STATUS, START_STATUS = 2, 1
STDERR = 2  # its descriptor


class ServeError(Exception):
    """A failure to run a broker; the text is the reason, in one line. ``status``: exit status of the process."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class OptionError(ValueError):
    """An invalid value of the option named ``option``."""

    def __init__(self, message: str, option: str) -> None:
        super().__init__(message)
        self.option = option


class Options(NamedTuple):
    """The options of `kbroker serve`, as given."""

    listeners: Sequence[str]
    data_dir: str | None
    config_file: str | Path | None
    settings: Mapping[str, str]
    in_memory: bool
    brokers: int | None = None
    racks: str | None = None


def plain_options(words: Sequence[str]) -> Options | None:
    """Return the options in the words after `serve`; None if they need the full parser: help, mistakes, short forms."""
    values: dict[str, list[str]] = {"--listener": [], "--data-dir": [], "--config": [], "--set": []}
    in_memory = False
    named: list[str] = []  # files without --config
    at = 0
    while at < len(words):
        name, equals, value = words[at].partition("=")
        at += 1
        if name == "--in-memory" and not equals:
            in_memory = True
            continue
        if not name.startswith("-"):
            named.append(words[at - 1])
            continue
        if name not in values:
            return None
        if not equals:
            if at == len(words):
                return None
            value = words[at]
            at += 1
        values[name].append(value)
    settings = {}
    for word in values["--set"]:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            return None
        settings[key.strip()] = value.strip()
    folders, files = values["--data-dir"], values["--config"] + named
    if (len(files) > 1 and named) or (folders and in_memory):
        return None
    paths = [path for path in folders + files if os.path.exists(path)]
    if any(os.path.isdir(path) != (path in folders) or not os.access(path, os.R_OK) for path in paths):
        return None
    return Options(
        values["--listener"], folders[-1] if folders else None, files[-1] if files else None, settings, in_memory
    )


def serve(
    read_properties: Callable[[], dict[str, str]], describe: Callable[[Broker], Iterable[str]] | None = None
) -> None:
    """Run a broker until a signal, then stop it in order; end by that signal if the broker was not ready yet.

    SIGQUIT prints the stack of each thread instead.

    Args:
        read_properties: return the settings of the broker; called once.
        describe: return the lines to print when the broker is ready; None: the ready line.

    Raises: OptionError; ServeError.
    """
    loggers.write_lines()
    if sys.platform != "win32":  # as the JVM does: `kill -3` does not end a broker, and works on a stuck one
        faulthandler.register(signal.SIGQUIT, file=STDERR)
    try:
        with StopSignals() as stop:
            was_ready = _run(read_properties(), stop, describe or (lambda broker: [ready_line(broker)]))
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        raise ServeError(more_open_files(), START_STATUS) from None
    if not was_ready and stop.number is not None:
        signal.raise_signal(stop.number)  # for the exit status of a program that the signal has ended


def ready_line(broker: Broker | EmbeddedCluster) -> str:
    """Return the line that names the version and the addresses of a started broker."""
    return f"kbroker {kbroker.__version__} ready: {broker.describe()}"


def properties_of(options: Options) -> dict[str, str]:
    """Return the settings of a broker; later sources win: file, environment, options, ``--set``.

    Raises: OptionError.
    """
    properties = _from_file_and_environment(options.config_file)
    if options.listeners:
        properties["listeners"] = ",".join(_listener(word) for word in options.listeners)
    if options.data_dir is not None:
        properties["log.dirs"] = options.data_dir
    if options.in_memory:
        properties["kbroker.in.memory"] = "true"
    if options.brokers is not None:
        properties["kbroker.brokers"] = str(options.brokers)
    if options.racks is not None:
        properties["kbroker.racks"] = options.racks
    _check_names(options.settings)
    properties.update(options.settings)
    return properties


def _check_names(settings: Mapping[str, str]) -> None:
    """Refuse a misspelled name in ``--set``; the broker only warns of unknown names in a file or the environment."""
    from kbroker.common.configs.config import check_broker_names
    from kbroker.common.configs.config_def import ConfigError

    try:
        check_broker_names(settings)
    except ConfigError as error:
        raise OptionError(str(error), "--set") from None


def _listener(word: str) -> str:
    """Return the listener of a word; `host:port` means PLAINTEXT. The check of `listeners` finds other faults."""
    address = word if "://" in word else f"PLAINTEXT://{word}"
    host, colon, port = address.partition("://")[2].rpartition(":")
    if not colon or not port.isdigit() or (":" in host and not host.startswith("[")):
        raise OptionError(wrong_host_port(word), "--listener")
    return address


def _from_file_and_environment(config_file: str | Path | None) -> dict[str, str]:
    from kbroker.common.configs.config import from_environment, parse_properties

    properties: dict[str, str] = {}
    if config_file is not None:
        try:
            with open(config_file, encoding="utf-8") as file:
                properties.update(parse_properties(file.read()))
        except OSError as error:
            raise OptionError(f"{config_file}: {error.strerror}", "--config") from None
        except UnicodeDecodeError:
            raise OptionError(f"{config_file}: expected UTF-8 text, found other bytes", "--config") from None
    properties.update(from_environment(os.environ))
    return properties


def _run(properties: dict[str, str], stop: StopSignals, describe: Callable[[Broker], Iterable[str]]) -> bool:
    """Start, print the lines of a ready broker, wait, stop; return whether it was ready.

    A signal during the start ends it.
    """
    from kbroker._core import process_memory
    from kbroker.broker import Broker, BrokerStartError, StartCancelled
    from kbroker.common.configs.config_def import ConfigError

    broker: Broker | EmbeddedCluster
    control: ControlServer | None = None
    unsupported = unsupported_on(sys.platform)
    if unsupported is not None:
        print(f"Warning: {unsupported}", file=sys.stderr, flush=True)
    try:
        if properties.get("kbroker.brokers", "1") != "1":
            broker, control = _cluster(properties, stop.ask)
            first: Broker = next(iter(broker.nodes.values()))
        elif properties.get("kbroker.control.listener"):
            from kbroker.testing.control import controlled_broker

            broker, control = controlled_broker(properties, stop.ask)
            first = broker
        else:
            broker = first = Broker(properties)
        if properties.get("kbroker.metrics.listener"):
            from kbroker.console import mount

            mount(first)
        stop.on_first = broker.cancel_start
        broker.on_failure = stop.ask
        if stop.has_come():
            return False
        broker.start()
        if control is not None:
            _open(control, broker)
    except StartCancelled:
        broker.stop()  # removes its temporary folder, if it has one
        return False
    except ConfigError as error:
        raise ServeError(error.explain(), CONFIG_STATUS) from None
    except BrokerStartError as error:
        raise ServeError(str(error), START_STATUS) from None
    try:
        was_ready = not stop.has_come()
        if was_ready:
            lines = [*(describe(first) if broker is first else [ready_line(broker)])]
            _print_ready([*lines, f"kbroker {control.describe()}"] if control is not None else lines)
            if not gc.isenabled():  # all loaded objects stay: the collector need not visit them
                gc.freeze()
                gc.enable()
            process_memory.release_free_memory()  # half a MiB that only the start needed
            stop.wait()
        if broker.failure:
            raise ServeError(broker.failure, START_STATUS)
        return was_ready
    finally:
        if control is not None:
            control.stop()
        broker.stop()


def _print_ready(lines: Iterable[str]) -> None:
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ServeError(f"cannot print the ready line on standard output: {error.strerror}", START_STATUS) from None


def unsupported_on(platform: str) -> str | None:
    """Return the limitations of a broker on a system (``sys.platform``), in one line; None if none is known."""
    if platform == "win32":
        return (
            "on Windows a segment that is open can be neither rolled nor deleted, so retention, compaction and "
            "deleting topics fail; run brokers whose data matters on Linux"
        )
    return None


def _cluster(
    properties: Mapping[str, str], on_shutdown: Callable[[], object]
) -> tuple[EmbeddedCluster, ControlServer | None]:
    """Return the cluster that ``kbroker.brokers`` requests, and its control port. Raises: ConfigError."""
    from kbroker.common.configs.config import BrokerConfig
    from kbroker.testing.cluster import EmbeddedCluster

    config = BrokerConfig(properties)  # a bad value is refused here
    cluster = EmbeddedCluster(
        config.integer("kbroker.brokers"),
        racks=config.words("kbroker.racks"),
        virtual_clock=config.boolean("kbroker.control.virtual.clock"),
        defaults=properties,
    )
    if not config.text("kbroker.control.listener"):
        return cluster, None
    from kbroker.testing.control import control_port

    return cluster, control_port(cluster, config, on_shutdown)


def _open(control: ControlServer, broker: Broker | EmbeddedCluster) -> None:
    from kbroker.broker import BrokerStartError

    try:
        control.start()
    except OSError as error:
        broker.stop()
        raise BrokerStartError(error.strerror or str(error)) from None
