"""`kbroker pipeline`: the commands that run on Spark; each loads it only when it starts."""

from pathlib import Path

import click

from kbroker.cli.options import CommandGroup, json_option
from kbroker.cli.output import print_done
from kbroker.cli.pipeline_clients import clients
from kbroker.cli.pipeline_jobs import archive, compact, ingest
from kbroker.cli.pipeline_views import lag, throttles, usage
from kbroker.cli.pipeline_watch import watch
from kbroker.cli.pipeline_whatif import recommend, replay, report


@click.group(cls=CommandGroup)
def pipeline() -> None:
    """Work on request logs with Apache Spark."""


@pipeline.command()
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for the jars.  [default: KBROKER_SPARK_JARS, else the user's cache folder]",
)
@click.option("--delta", is_flag=True, help="Include the jars of Delta Lake, for PySpark 4.2.")
@json_option
def jars(into: Path | None, delta: bool, as_json: bool) -> None:
    """Fetch the jars of Spark's Kafka connector by Maven.

    The command verifies their checksums and prints their paths in the form of the setting spark.jars. A jar that
    exists is not fetched again.
    """
    from kbroker.spark.setup.jars import CONNECTOR, DELTA, fetch_jars

    files = [str(file.absolute()) for file in fetch_jars([*CONNECTOR, *(DELTA if delta else ())], into)]
    print_done({"jars": files}, as_json, ",".join(files))


for command in (ingest, usage, throttles, clients, lag, archive, compact, replay, recommend, report, watch):
    pipeline.add_command(command)
