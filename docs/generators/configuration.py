"""Write docs/configuration.md from the tables of configs: ``python docs/generators/configuration.py [--check]``."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from generated_page import write_page

from kbroker.common.configs.config import BROKER_TABLE, FALLBACKS, TOPIC_TABLE
from kbroker.common.configs.config_def import INT32_MAX, INT64_MAX, ConfigKey, ConfigValue, Dynamic, to_text
from kbroker.common.configs.config_resources import CLIENT_METRICS_TABLE, GROUP_TABLE

_HEAD = """# Configuration

Made from the tables in the code by `python docs/generators/configuration.py`; do not edit it here.

A setting of the broker comes from, later ones winning: its default, the properties file, the environment
(`KAFKA_LOG_DIRS`, `KAFKA_CFG_LOG_DIRS` and `KBROKER_CFG_LOG_DIRS` all mean `log.dirs`; `KBROKER_REQUEST_BATCH_MAX`
means
`kbroker.request.batch.max`), and `--set key=value`. Over all of them win the values that are changed at run time
(`kafka-configs`, or any client's IncrementalAlterConfigs): those of this broker over those of all brokers.

*Changes*: **restart** can only be set at start; **at run time** can be changed in a running broker, for it or for all
brokers, and is in force when the response is there, unless the text says otherwise.
"""

_CHANGES = {
    Dynamic.READ_ONLY: "restart",
    Dynamic.PER_BROKER: "at run time, per broker",
    Dynamic.CLUSTER_WIDE: "at run time",
}
_NAMED = {INT32_MAX: "2147483647 (no limit)", INT64_MAX: "9223372036854775807 (no limit)"}


def page() -> str:
    """The whole page."""
    own = {name: key for name, key in BROKER_TABLE.items() if name.startswith("kbroker.")}
    kafka = {name: key for name, key in BROKER_TABLE.items() if name not in own}
    parts = [
        _HEAD,
        "## Topics\n",
        "Set when a topic is made, or changed at run time; in force from the next append, read or round of retention. "
        "A topic that does not set a key follows the broker's.\n",
        _table(("Key", "Default", "Broker's key", "Allowed", "Meaning"), map(_topic_row, TOPIC_TABLE.values())),
        "\n## Broker\n",
        _table(("Key", "Default", "Changes", "Allowed", "Meaning"), map(_broker_row, kafka.values())),
        "\n### Of this broker only\n",
        _table(("Key", "Default", "Changes", "Allowed", "Meaning"), map(_broker_row, own.values())),
        "\n### Coarser units\n",
        "A key that is not set takes the first of these that is.\n",
        _table(("Key", "Then"), ((f"`{name}`", _names(then)) for name, then in FALLBACKS.items())),
        "\n## Groups\n",
        "Stored and described; what they govern is not served yet.\n",
        _table(("Key", "Default", "Allowed", "Meaning"), map(_plain_row, GROUP_TABLE.values())),
        "\n## Client metrics subscriptions\n",
        "Stored and described; no client is asked for metrics yet.\n",
        _table(("Key", "Default", "Allowed", "Meaning"), map(_plain_row, CLIENT_METRICS_TABLE.values())),
    ]
    return "\n".join(parts)


def _topic_row(key: ConfigKey) -> tuple[str, ...]:
    synonym = f"`{key.synonym}`" if key.synonym else "none"
    return f"`{key.name}`", _default(key.default), synonym, key.allowed, key.doc


def _broker_row(key: ConfigKey) -> tuple[str, ...]:
    return f"`{key.name}`", key.default_doc or _default(key.default), _CHANGES[key.dynamic], key.allowed, key.doc


def _plain_row(key: ConfigKey) -> tuple[str, ...]:
    return f"`{key.name}`", _default(key.default), key.allowed, key.doc


def _default(value: ConfigValue) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value in _NAMED:
        return _NAMED[value]
    text = to_text(value)
    return "unset" if text is None else f"`{text}`" if text else "empty"


def _names(pairs: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"`{name}`" for name, _ in pairs)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write or check the page; return the exit status."""
    return write_page("configuration.md", page, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
