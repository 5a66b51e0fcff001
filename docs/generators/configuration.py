"""Write docs/configuration.md from the tables of configs: ``python docs/generators/configuration.py [--check]``."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from generated_page import write_page

from kbroker.common.configs.config import BROKER_TABLE, FALLBACKS, TOPIC_TABLE
from kbroker.common.configs.config_def import INT32_MAX, INT64_MAX, ConfigKey, ConfigValue, Dynamic, to_text
from kbroker.common.configs.config_resources import CLIENT_METRICS_TABLE, GROUP_TABLE

_HEAD = """# Configuration

`python docs/generators/configuration.py` generates this page from the tables in the code; do not edit it here.

The value of a broker setting comes from these sources; later ones override earlier ones:

1. the default,
2. the properties file,
3. the environment: `KAFKA_LOG_DIRS`, `KAFKA_CFG_LOG_DIRS` and `KBROKER_CFG_LOG_DIRS` all mean `log.dirs`;
   `KBROKER_REQUEST_BATCH_MAX` means `kbroker.request.batch.max`,
4. `--set key=value`,
5. values changed at run time for all brokers (`kafka-configs`, or IncrementalAlterConfigs of any client),
6. values changed at run time for this broker.

*Changes*: **restart** means that a setting can only be set at the start. **At run time** means that it can be changed
in a running broker, for this broker or for all brokers; unless stated otherwise, the change is in force when its
response arrives.
"""

_CHANGES = {
    Dynamic.READ_ONLY: "restart",
    Dynamic.PER_BROKER: "at run time, per broker",
    Dynamic.CLUSTER_WIDE: "at run time",
}
_NAMED = {INT32_MAX: "2147483647 (no limit)", INT64_MAX: "9223372036854775807 (no limit)"}


def page() -> str:
    """Return the whole page."""
    own = {name: key for name, key in BROKER_TABLE.items() if name.startswith("kbroker.")}
    kafka = {name: key for name, key in BROKER_TABLE.items() if name not in own}
    parts = [
        _HEAD,
        "## Topics\n",
        "Topic settings are set when a topic is created, or changed at run time. They are in force from the next "
        "append, read or retention check. A topic that does not set a key has the value of the broker's key.\n",
        _table(("Key", "Default", "Broker's key", "Allowed", "Meaning"), map(_topic_row, TOPIC_TABLE.values())),
        "\n## Broker\n",
        _table(("Key", "Default", "Changes", "Allowed", "Meaning"), map(_broker_row, kafka.values())),
        "\n### Settings of kbroker only\n",
        _table(("Key", "Default", "Changes", "Allowed", "Meaning"), map(_broker_row, own.values())),
        "\n### Coarser units\n",
        "A key that is not set has the value of the first of these keys that is set.\n",
        _table(("Key", "Used instead"), ((f"`{name}`", _names(then)) for name, then in FALLBACKS.items())),
        "\n## Groups\n",
        "Settings of one [group](groups.md); without one, the broker's applies.\n",
        _table(("Key", "Default", "Allowed", "Meaning"), map(_plain_row, GROUP_TABLE.values())),
        "\n## Client metrics subscriptions\n",
        "Selection of the metrics that clients push, and the interval: [client telemetry](client-telemetry.md).\n",
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
