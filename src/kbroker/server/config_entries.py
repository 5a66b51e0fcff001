"""Configuration as DescribeConfigs and CreateTopics show it: values in force, where they come from, their synonyms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.common.config import BROKER_TABLE, FALLBACKS, TOPIC_TABLE, BrokerConfig, base_name, broker_key
from kbroker.common.config_def import ConfigKey, ConfigSource, ConfigValue, Dynamic, to_text

Entry = dict[str, Any]
Synonym = tuple[str, ConfigValue, ConfigSource]


def topic_entries(config: BrokerConfig, overrides: Mapping[str, str]) -> list[Entry]:
    """Every config of a topic that sets ``overrides``."""
    values = config.topic_configs(overrides)
    entries = []
    for name, key in TOPIC_TABLE.items():
        synonyms = [] if key.synonym is None else broker_synonyms(config, key.synonym)
        if name in overrides:
            synonyms.insert(0, (name, values[name], ConfigSource.DYNAMIC_TOPIC_CONFIG))
        entries.append(_entry(key, values[name], synonyms, False))
    return entries


def broker_entries(config: BrokerConfig) -> list[Entry]:
    """Every config of this broker."""
    table = {**BROKER_TABLE, **{name: broker_key(name) for name in config.listener_settings}}
    return [
        _entry(key, config.value(name), broker_synonyms(config, name), key.dynamic is Dynamic.READ_ONLY)
        for name, key in table.items()
        if key is not None
    ]


def default_broker_entries(config: BrokerConfig, dynamic: Mapping[str, str]) -> list[Entry]:
    """The configs set for all brokers, and only those."""
    entries = []
    for name in sorted(dynamic):
        key = broker_key(name)
        if key is not None:
            synonyms = [
                one for one in broker_synonyms(config, name) if one[2] >= ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
            ]
            entries.append(_entry(key, key.parse(dynamic[name]), synonyms, key.dynamic is Dynamic.READ_ONLY))
    return entries


def resource_entries(table: Mapping[str, ConfigKey], overrides: Mapping[str, str], source: ConfigSource) -> list[Entry]:
    """Every config of a group or of a client metrics subscription that sets ``overrides``."""
    entries = []
    for name, key in table.items():
        value = key.parse(overrides[name]) if name in overrides else key.default
        synonyms: list[Synonym] = [(key.synonym or name, key.default, ConfigSource.DEFAULT_CONFIG)]
        if name in overrides:
            synonyms.insert(0, (name, value, source))
        entries.append(_entry(key, value, synonyms, False))
    return entries


def broker_synonyms(config: BrokerConfig, name: str) -> list[Synonym]:
    """The values of a broker config, the winning one first.

    A finer unit's list goes on with the coarser ones (hours behind minutes behind milliseconds), but Kafka drops what
    comes before the config's own name: an unset log.retention.ms has no synonyms although log.retention.hours is set.
    """
    found: list[Synonym] = []
    base = base_name(name)
    others = (base,) if base != name else tuple(fallback for fallback, _ in FALLBACKS.get(name, ()))
    for other in (name, *others):
        found.extend((other, value, source) for source, value in config.sources(other))
    if base == name:
        found.sort(key=lambda synonym: synonym[2])
    while found and found[0][0] != name:
        found.pop(0)
    return found


def _entry(key: ConfigKey, value: ConfigValue, synonyms: list[Synonym], read_only: bool) -> Entry:
    sensitive = key.is_sensitive
    return {
        "Name": key.name,
        "Value": None if sensitive else to_text(value),
        "ReadOnly": read_only,
        "ConfigSource": int(synonyms[0][2] if synonyms else ConfigSource.DEFAULT_CONFIG),
        "IsSensitive": sensitive,
        "Synonyms": [
            {"Name": name, "Value": None if sensitive else to_text(value), "Source": int(source)}
            for name, value, source in synonyms
        ],
        "ConfigType": int(key.type),
        "Documentation": key.doc,
    }
