"""`kbroker cluster`: description of a cluster, on any Kafka."""

from dataclasses import asdict

import click

from kbroker.cli.options import CommandGroup, bootstrap_option, connect, json_option
from kbroker.cli.output import print_json, print_table
from kbroker.client.cluster_description import describe_cluster
from kbroker.client.connection import format_address


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Describe a cluster: its brokers, controller and features."""


@cluster.command()
@bootstrap_option
@json_option
def describe(bootstrap_server: str, as_json: bool) -> None:
    """Show the cluster id, the brokers, and the level of each feature."""
    with connect(bootstrap_server) as connected:
        found = describe_cluster(connected)
    if as_json:
        print_json(
            {
                "cluster_id": found.cluster_id,
                "controller": found.controller_id if found.controller_id >= 0 else None,
                "brokers": [asdict(node) for node in found.brokers],
                "features": [asdict(feature) for feature in found.features],
            }
        )
        return
    click.echo(f"cluster {found.cluster_id or '-'}")
    rows = [
        [node.node_id, format_address(node.address), node.rack, "yes" if node.node_id == found.controller_id else None]
        for node in found.brokers
    ]
    print_table(["BROKER", "ADDRESS", "RACK", "CONTROLLER"], rows)
    if found.features:
        click.echo()
        features = [
            [feature.name, feature.finalized_level, f"{feature.min_supported_level}-{feature.max_supported_level}"]
            for feature in found.features
        ]
        print_table(["FEATURE", "LEVEL", "SUPPORTED"], features)
