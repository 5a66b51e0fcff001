"""`kbroker serve`: run a broker until a signal stops it."""

from pathlib import Path

import click

from kbroker.cli.options import key_values


@click.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--listener",
    multiple=True,
    metavar="[NAME://]HOST:PORT",
    help="Address to listen on; port 0 picks a free port. Repeatable.",
)
@click.option("--data-dir", type=click.Path(file_okay=False), help="Folder of the data (log.dirs), or several: A,B.")
@click.option("--config", "config_file", type=click.Path(dir_okay=False, path_type=Path), help="The same as FILE.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a config, over all other sources. Repeatable."
)
@click.option("--in-memory", is_flag=True, help="Delete all data when the broker stops.")
@click.option(
    "--brokers",
    type=click.IntRange(1, 100),
    help="Number of nodes of a cluster for tests, with --in-memory: they listen on successive ports, and nothing is "
    "replicated.",
)
@click.option("--racks", metavar="A,B,...", help="Rack of each node of --brokers, in the order of their ids.")
def serve(
    file: Path | None,
    listener: tuple[str, ...],
    data_dir: str | None,
    config_file: Path | None,
    settings: tuple[str, ...],
    in_memory: bool,
    brokers: int | None,
    racks: str | None,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    The broker then shuts down in order and exits with status 0. A signal before the ready line cancels the start; the
    exit status is then that of the signal (130 or 143).

    FILE is a properties file, such as the server.properties of a combined node of Kafka. Configs come from these
    sources; later ones override earlier ones: defaults, FILE, the environment (KAFKA_LOG_DIRS or
    KBROKER_CFG_LOG_DIRS for log.dirs), the other options, --set.

    For tests in any language, --set kbroker.control.listener=127.0.0.1:0 opens an HTTP port that sets faults, moves
    leaders, stops nodes and, with --set kbroker.control.virtual.clock=true, advances the time: docs/testing.md.
    """
    from kbroker import serving

    if file is not None and config_file is not None:
        raise click.UsageError(f"expected one properties file, got {file} and --config {config_file}")
    if in_memory and data_dir is not None:
        raise click.UsageError("expected only one of --in-memory and --data-dir, got both")
    options = serving.Options(
        listener, data_dir, file or config_file, key_values(settings, "--set"), in_memory, brokers, racks
    )
    try:
        serving.serve(lambda: serving.properties_of(options))
    except serving.OptionError as error:
        hint = "FILE" if file is not None and error.option == "--config" else error.option
        raise click.BadParameter(str(error), param_hint=hint) from None
    except serving.ServeError as error:
        failure = click.ClickException(str(error))
        setattr(failure, "exit_code", error.status)  # noqa: B010  a class variable for click's stubs
        raise failure from None
