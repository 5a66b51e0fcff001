"""Write docs/metrics.md from the metrics of a running broker: ``python docs/generators/metrics.py [--check]``."""

from __future__ import annotations

import sys

from generated_page import write_page

from kbroker.broker import Broker
from kbroker.metrics.exposition import family_of
from kbroker.metrics.families import Family, label_name
from kbroker.metrics.registry import Metrics

_HEAD = """# Metrics

Made from a running broker by `python docs/generators/metrics.py`; do not edit it here.

`kbroker.metrics.listener=127.0.0.1:9400` opens an HTTP port with `/metrics` (Prometheus's text format, OpenMetrics for
clients that ask for it), `/health` (200 while the process responds) and `/ready` (200 while clients are served, else
503). It is off by default, needs `pip install 'kbroker[metrics]'`, and has no authentication: leave it on the loopback
interface or a private network. `GET` and `HEAD` only. While 28 scrapes are served, a further one gets 503, so that
scrapes do not delay health checks.

Names follow from Kafka's: `kafka_`, the group without `metrics` (of a JMX name its domain and type), the name, each in
words with underscores; tags are labels. Counters end in `_total`, and a meter `XPerSec` is the counter `x_total`:
Prometheus's `rate()` makes it per second. Units are as in Kafka; delays say that they are milliseconds. What Kafka
does not have begins with `kbroker_`.

Series with a label that clients make up (`user`, `client_id`, `ip`, `topic`, `partition`) are bounded: of each metric
the `kbroker.metrics.entity.series` (100) largest are shown, the rest together under the label value `other` (added up,
or the largest of them where a sum means nothing). A share "of the last minute" is measured from one scrape to another.

The histograms of requests count since the start, in fixed buckets of milliseconds, where Kafka's forget with time:
`histogram_quantile` over `rate()` gives what Kafka's percentiles are for. Each network thread writes its own, without a
lock: some 20 ns a request. `process_...` metrics of memory, CPU and open files come from `prometheus_client`.

"""


def page() -> str:
    """The whole page."""
    with Broker({"listeners": "PLAINTEXT://127.0.0.1:0", "kbroker.in.memory": True}) as broker:
        families = {family.prometheus_name: family for family in broker.exposition.families}
        _add_registered(families, broker.context.metrics)
        rows = [_row(families[name]) for name in sorted(families)]
    head = ("Prometheus", "Kafka", "Kind", "Labels", "Meaning")
    lines = [head, ("---",) * len(head), *rows]
    return _HEAD + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


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
