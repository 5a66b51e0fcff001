"""Write docs/metrics.md from the metrics of a running broker: ``python docs/generators/metrics.py [--check]``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast
from uuid import UUID

from generated_page import write_page

from kbroker.broker import Broker
from kbroker.metrics.exposition import family_of
from kbroker.metrics.families import Family, label_name
from kbroker.metrics.registry import Metrics
from kbroker.observe import member_metrics
from kbroker.observe.metric_table import families as row_families
from kbroker.telemetry.manager import Client

if TYPE_CHECKING:
    from kbroker.member.member import Member

_HEAD = """# Metrics

`python docs/generators/metrics.py` generates this page from a running broker; do not edit it here.

`kbroker.metrics.listener=127.0.0.1:9400` opens an HTTP port with `/metrics` (Prometheus's text format, or OpenMetrics
for clients that request it), `/health` (200 while the process responds) and `/ready` (200 while clients are served,
otherwise 503). The port is off by default, needs `pip install 'kbroker[metrics]'`, and has no authentication for these
paths: keep it on the loopback interface or a private network. It supports `GET` and `HEAD` only. While 28 scrapes are
in progress, a further one gets 503, so that scrapes do not delay health checks.

A metric's name follows from Kafka's: `kafka_`, the group without `metrics` (for a JMX name its domain and type), and
the name, each in words with underscores. Tags become labels. Counters end in `_total`; a meter `XPerSec` becomes the
counter `x_total`, whose rate Prometheus's `rate()` computes. Units are those of Kafka; delays have `ms` in their names.
Metrics that Kafka does not have begin with `kbroker_`.

Metrics with a label that clients choose (`user`, `client_id`, `ip`, `topic`, `partition`) have a limited number of
series: the `kbroker.metrics.entity.series` (100) largest of each metric are shown, all others together under the label
value `other` (their sum, or their maximum where a sum is meaningless). A share "of the last minute" is measured from
one scrape to the next.

The histograms of requests count since the start, in fixed buckets of milliseconds, whereas Kafka's decay with time:
`histogram_quantile` over `rate()` corresponds to Kafka's percentiles. Each network thread writes its own histograms,
without a lock, in about 20 ns per request. `prometheus_client` provides the `process_...` metrics of memory, CPU and
open files.

Each metric that clients push ([client telemetry](client-telemetry.md)) is `kbroker_client_` and its name, with the
labels `client_id` and `client_instance_id` and those of the value. Of each metric `kbroker.metrics.entity.series`
series are shown, of the clients that were active last, and of at most 1,000 metrics.

"""

_MEMBERS = """
A [broker of a Kafka cluster](cluster.md) has these too:

"""


def page() -> str:
    """Return the whole page."""
    with Broker({"listeners": "PLAINTEXT://127.0.0.1:0", "kbroker.in.memory": True}) as broker:
        _ = broker.context.share_partitions  # this access starts them with their sensors
        # its sensors exist once a client has asked for its subscription
        broker.context.telemetry.manager.get_subscription(UUID(int=7), Client({}, "", "", lambda number: False))
        families = {family.prometheus_name: family for family in broker.exposition.families}
        _add_registered(families, broker.context.metrics)
    members = row_families(member_metrics.ROWS, cast("Member", None))  # no value is read
    return _HEAD + _table(families.values()) + _MEMBERS + _table(members)


def _table(families: Iterable[Family]) -> str:
    head = ("Prometheus", "Kafka", "Kind", "Labels", "Meaning")
    rows = map(_row, sorted(families, key=lambda family: family.prometheus_name))
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _add_registered(families: dict[str, Family], metrics: Metrics) -> None:
    for name, _ in metrics.items():
        family = family_of(name)
        families.setdefault(family.prometheus_name, family)


def _row(family: Family) -> tuple[str, ...]:
    labels = ", ".join(f"`{label_name(label)}`" for label in family.labels)
    kafka = f"`{family.kafka_name}`" if family.kafka_name else "none"
    return f"`{family.prometheus_name}`", kafka, family.kind, labels, family.help


def main(arguments: list[str]) -> int:
    """Write or check the page; return the exit status."""
    return write_page("metrics.md", page, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
