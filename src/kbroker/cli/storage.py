"""`kbroker storage`: format and examine log folders, as Kafka's kafka-storage does, without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.options import FILE, FOLDER, CommandGroup, decorators, json_option, wall_clock
from kbroker.cli.output import print_done, print_json

if TYPE_CHECKING:
    from kbroker.common.configs.config_node import NodeConfig
    from kbroker.log.checkpoints import MetaProperties

NOT_FORMATTED_STATUS = CANNOT_SERVE_STATUS = 1
CONFIG = click.option(
    "--config",
    "-c",
    "config_file",
    required=True,
    type=FILE,
    metavar="FILE",
    help="Properties file of the node, such as Kafka's server.properties.",
)


class _StorageGroup(CommandGroup):
    """A group in which every failure has the exit status 1, as in Kafka's tool."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises: click.UsageError with the exit status 1."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            setattr(error, "exit_code", 1)  # noqa: B010  a class variable for click's stubs
            raise


@click.group(cls=_StorageGroup)
def storage() -> None:
    """Format and examine log folders, without a broker."""


@storage.command("format")
@CONFIG
@click.option("--cluster-id", "-t", required=True, metavar="ID", help="The cluster's id; make one with random-uuid.")
@click.option(
    "--add-scram",
    "-S",
    multiple=True,
    metavar="CREDENTIAL",
    help="SCRAM user of the new cluster, as 'SCRAM-SHA-256=[name=alice,password=alice-secret]'. Repeatable.",
)
@click.option("--ignore-formatted", "-g", is_flag=True, help="Leave formatted folders alone, and format the others.")
@click.option(
    "--release-version",
    "-r",
    metavar="X.Y",
    help="Kafka version whose features the cluster has, 3.3 or later.  [default: 4.3]",
)
@click.option(
    "--feature",
    "-f",
    multiple=True,
    metavar="NAME=LEVEL",
    help="Level of a feature, such as group.version=0. Repeatable.",
)
@decorators(
    click.option("--standalone", "-s", is_flag=True, help="Make the node the only controller of the new cluster."),
    click.option(
        "--no-initial-controllers", "-N", is_flag=True, help="Make a node that gets its controllers from elsewhere."
    ),
    click.option(
        "--initial-controllers",
        "-I",
        metavar="VOTERS",
        help="Controllers of the new cluster, as id@host:port:directory-id, separated by commas. The same words are "
        "given when the other nodes are formatted.",
    ),
    json_option,
)
def format_command(
    config_file: Path,
    cluster_id: str,
    add_scram: tuple[str, ...],
    ignore_formatted: bool,
    release_version: str | None,
    feature: tuple[str, ...],
    standalone: bool,
    no_initial_controllers: bool,
    initial_controllers: str | None,
    as_json: bool,
) -> None:
    """Format the log folders of a node.

    Lines and files are those of Kafka's kafka-storage.

    Apache Kafka and kbroker can serve them. A controller needs one of --standalone, --initial-controllers and
    --no-initial-controllers, unless controller.quorum.voters is set. The features are those of Kafka, including some
    that kbroker does not serve; `kbroker serve` formats an empty folder itself, with the features that it serves.
    """
    from kbroker.common.configs.config_quorum import LISTENER_NAMES, VOTERS, voter_listener
    from kbroker.common.feature_versions import level_of_release
    from kbroker.metadata.log import format_options, formatter
    from kbroker.metadata.log.scram_arguments import credential_record

    chosen = {
        "--standalone/-s": standalone,
        "--no-initial-controllers/-N": no_initial_controllers,
        "--initial-controllers/-I": initial_controllers is not None,
    }
    _check_one([option for option, is_given in chosen.items() if is_given])
    config = _node_config(config_file)
    has_voters = bool(config.words(VOTERS))
    if release_version is not None:
        level_of_release(release_version, allow_unstable=config.allows_unstable_features)
    requested = format_options.requested_levels(feature)
    if has_voters and (standalone or initial_controllers is not None):
        raise formatter.FormatError(
            "You cannot specify controller.quorum.voters and format the node with --initial-controllers or "
            "--standalone. If you want to use dynamic quorum, please remove controller.quorum.voters and specify "
            "controller.quorum.bootstrap.servers instead."
        )
    voters = []
    if initial_controllers is not None:
        name = (config.words(LISTENER_NAMES) or (voter_listener(config).name,))[0]
        voters = format_options.parse_voters(initial_controllers, name)
    elif standalone:
        if not config.is_controller:
            raise formatter.FormatError("You can only use --standalone on a controller.")
        voters = [formatter.standalone_voter(config.node_id, voter_listener(config))]
    if config.is_controller and not (has_voters or voters or no_initial_controllers):
        raise formatter.FormatError(
            "Because controller.quorum.voters is not set on this controller, you must specify one of the "
            "following: --standalone, --initial-controllers, or --no-initial-controllers."
        )
    levels = format_options.effective_levels(
        requested, release_version, is_dynamic=not has_voters, allow_unstable=config.allows_unstable_features
    )
    if add_scram:
        format_options.check_credentials_level(levels)
    done = formatter.format_folders(
        _folders(config),
        config.metadata_log_dir,
        cluster_id=cluster_id,
        node_id=config.node_id,
        now_ms=wall_clock().wall_ms(),
        voters=voters,
        levels=levels,
        credentials=[credential_record(argument) for argument in add_scram],
        skip_formatted=ignore_formatted,
        **({} if as_json else {"report": click.echo}),
    )
    if as_json:
        rows = [
            {"folder": str(folder), **_document(owner), "is_new": folder in done.new}
            for folder, owner in sorted(done.owners.items())
        ]
        print_json({"folders": rows, "levels": levels})


def _check_one(options: Sequence[str]) -> None:
    if len(options) > 1:
        raise click.UsageError(f"argument {options[1]}: not allowed with argument {options[0]}")


@storage.command()
@CONFIG
@json_option
def info(config_file: Path, as_json: bool) -> None:
    """Print the owner and the faults of log folders.

    The exit status is 1 if a folder is missing or not formatted, or if the folders have different owners.
    """
    from kbroker.metadata.log.folder_info import folder_info

    config = _node_config(config_file)
    found = folder_info(_folders(config))
    if as_json:
        owner = None if found.owner is None else _document(found.owner)
        print_json({"folders": [str(path) for path in found.folders], "owner": owner, "problems": found.problems})
    else:
        for line in found.lines():
            click.echo(line)
    if found.problems:
        raise click.exceptions.Exit(NOT_FORMATTED_STATUS)


@storage.command()
@click.argument("folders", nargs=-1, required=True, type=FOLDER, metavar="DIR...")
@click.option(
    "--version",
    "-V",
    "versions",
    multiple=True,
    metavar="X.Y|kbroker",
    shell_complete=lambda ctx, param, incomplete: [word for word in _servers() if word.startswith(incomplete)],
    help="Judge this version of Apache Kafka, or kbroker. Repeatable.  [default: 4.3 and kbroker]",
)
@json_option
def check(folders: tuple[Path, ...], versions: tuple[str, ...], as_json: bool) -> None:
    """Report which server can serve log folders.

    The command judges Apache Kafka and kbroker: the obstacles to serving the folders, and whatever would have no
    effect. It changes no file; stop the broker first, and name every folder of log.dirs. The exit status is 1 if one
    of the servers cannot serve the folders.
    """
    from kbroker.common.feature_versions import LATEST_RELEASE
    from kbroker.log.folder_lock import LOCK_FILE, FolderLock
    from kbroker.metadata.log import folder_check

    servers = [_server(word) for word in versions] or [LATEST_RELEASE, folder_check.KBROKER]
    for folder in folders:
        if (folder / LOCK_FILE).exists():
            FolderLock(folder).release()
    found = folder_check.read_folders(folders)
    verdicts = [folder_check.judge(found, server) for server in servers]
    if as_json:
        rows = [{"server": one.server, "can_serve": not one.obstacles, **one._asdict()} for one in verdicts]
        print_json({"folders": [str(folder) for folder in folders], **found.summary(), "verdicts": rows})
    else:
        click.echo(found.title())
        for verdict in verdicts:
            for line in verdict.lines():
                click.echo(line)
    if any(verdict.obstacles for verdict in verdicts):
        raise click.exceptions.Exit(CANNOT_SERVE_STATUS)


def _server(word: str) -> str:
    """Return the release of a version, or kbroker. Raises: click.BadParameter."""
    release, known = ".".join(word.split(".")[:2]), _servers()
    if release not in known:
        expected = f"{', '.join(known[:-1])} or {known[-1]}"
        raise click.BadParameter(f"expected {expected}, got {word}", param_hint="--version")
    return release


def _servers() -> list[str]:
    from kbroker.common.feature_versions import RELEASES
    from kbroker.metadata.log.folder_check import KBROKER

    return [*RELEASES, KBROKER]


@storage.command()
@click.argument("folders", nargs=-1, required=True, type=FOLDER, metavar="DIR...")
@click.option(
    "--initial-controllers",
    "-I",
    required=True,
    metavar="VOTERS",
    help="Controllers of the cluster, as id@host:port:directory-id, separated by commas; random-uuid prints an id.",
)
@click.option(
    "--output",
    "-o",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="New folder for the log folders of the controllers, and for the former metadata of the broker.",
)
@click.option(
    "--listener", default="CONTROLLER", show_default=True, metavar="NAME", help="Name of the controllers' listener."
)
@json_option
def separate(folders: tuple[Path, ...], initial_controllers: str, output: Path, listener: str, as_json: bool) -> None:
    """Give the metadata of a broker to new controllers.

    The metadata in the log folders becomes the first metadata of a cluster of Apache Kafka: FOLDER gets a folder for
    each controller, which is its log.dirs. The log folders keep the data and the node id, for a broker of that cluster.
    Stop the broker first, and name every folder of log.dirs.
    """
    from contextlib import ExitStack

    from kbroker.log.folder_lock import FolderLock
    from kbroker.metadata.log.format_options import parse_voters
    from kbroker.metadata.log.separation import separate as separate_folders

    with ExitStack() as locks:
        voters = parse_voters(initial_controllers, listener.upper())
        for folder in folders:
            locks.callback(FolderLock(folder).release)
        made = separate_folders(folders, voters, output, wall_clock().wall_ms())
    if as_json:
        print_json(
            {"controllers": [{"id": one.id, "folder": str(path)} for one, path in zip(voters, made, strict=True)]}
        )
        return
    for voter, path in zip(voters, made, strict=True):
        click.echo(f"controller {voter.id}: {path}")
    click.echo(f"broker: {', '.join(map(str, folders))}")


@storage.command("random-uuid")
@json_option
def random_uuid(as_json: bool) -> None:
    """Print a random id for a cluster or a folder."""
    from kbroker.log.checkpoints import random_uuid_text

    made = random_uuid_text()
    print_done({"id": made}, as_json, made)


def _document(owner: MetaProperties) -> dict[str, Any]:
    from kbroker.log.checkpoints import uuid_to_text

    directory_id = None if owner.directory_id is None else uuid_to_text(owner.directory_id)
    return {"cluster_id": owner.cluster_id, "node_id": owner.node_id, "directory_id": directory_id}


def _node_config(file: Path) -> NodeConfig:
    from kbroker.common.configs.config import parse_properties
    from kbroker.common.configs.config_def import ConfigError
    from kbroker.common.configs.config_node import NodeConfig

    try:
        return NodeConfig(parse_properties(file.read_text(encoding="utf-8")))
    except UnicodeDecodeError:
        raise click.ClickException(f"{file}: expected UTF-8 text, found other bytes") from None
    except ConfigError as error:
        raise click.ClickException(error.explain()) from None


def _folders(config: NodeConfig) -> list[Path]:
    return sorted({*config.log_dirs, config.metadata_log_dir}, key=str)
