"""`kbroker serve`: a broker until a signal says stop."""

from pathlib import Path

import click

from kbroker.cli.options import key_values


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
    from kbroker import serving

    options = serving.Options(listener, data_dir, config_file, key_values(settings, "--set"), in_memory)
    try:
        serving.serve(options)
    except serving.OptionError as error:
        raise click.BadParameter(str(error), param_hint=error.option) from None
    except serving.ServeError as error:
        failure = click.ClickException(str(error))
        setattr(failure, "exit_code", error.status)  # noqa: B010  a class variable for click's stubs
        raise failure from None
