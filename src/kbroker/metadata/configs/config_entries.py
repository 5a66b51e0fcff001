"""Configs in the form of DescribeConfigs and CreateTopics: effective values, their sources and synonyms."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from kbroker.common.configs.config import (
    BROKER_TABLE,
    FALLBACKS,
    RATE_TABLE,
    TOPIC_TABLE,
    BrokerConfig,
    described_key,
    of_listener,
)
from kbroker.common.configs.config_def import ConfigKey, ConfigType, ConfigValue, Dynamic, to_text
from kbroker.common.configs.config_resource import ConfigSource
from kbroker.common.configs.config_security import security_key

Entry = dict[str, Any]
Synonym = tuple[str, ConfigValue, ConfigSource]


def _rows(table: Mapping[str, ConfigKey], wanted: Container[str] | None) -> Iterator[tuple[str, ConfigKey]]:
    return ((name, key) for name, key in table.items() if wanted is None or name in wanted)


def topic_entries(
    config: BrokerConfig, overrides: Mapping[str, str], wanted: Container[str] | None = None
) -> list[Entry]:
    """Return the wanted configs of a topic that sets ``overrides``; all of them if ``wanted`` is None."""
    values = config.topic_configs(overrides)
    entries = []
    for name, key in _rows(TOPIC_TABLE, wanted):
        synonyms = [] if key.synonym is None else broker_synonyms(config, key.synonym)
        if name in overrides:
            synonyms.insert(0, (name, values[name], ConfigSource.DYNAMIC_TOPIC_CONFIG))
        entries.append(_entry(key, values[name], synonyms, False))
    return entries


def broker_entries(config: BrokerConfig, bound: Mapping[str, str] | None, wanted: Container[str] | None) -> list[Entry]:
    """Return the configs of this broker: those of the table, and others that were set.

    Args: ``bound``: bound addresses by config name, which replace an address with port 0; ``wanted``: names of the
    configs, None for all.
    """
    bound = bound or {}
    entries = [
        _entry(
            key, bound.get(name, config.value(name)), broker_synonyms(config, name), key.dynamic is Dynamic.READ_ONLY
        )
        for name, key in _rows(BROKER_TABLE, wanted)
    ]
    for name in config.names_beyond_the_table:
        if wanted is not None and name not in wanted:
            continue
        synonyms = broker_synonyms(config, name)
        key = _key_to_show(name)
        entries.append(_entry(key, synonyms[0][1], synonyms, name not in RATE_TABLE))
    return entries


def default_broker_entries(dynamic: Mapping[str, str]) -> list[Entry]:
    """Return the configs that were set for all brokers, each with its stored value as the only synonym."""
    entries = []
    for name in sorted(dynamic):
        key = _key_to_show(name)
        own = (name, dynamic[name], ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
        read_only = key.dynamic is Dynamic.READ_ONLY or of_listener(name) is not None
        entries.append(_entry(key, dynamic[name], [own], read_only))
    return entries


def _key_to_show(name: str) -> ConfigKey:
    """Return the row of a broker config; that of an unknown config has no type, so its value is hidden."""
    return described_key(name) or ConfigKey(name, ConfigType.UNKNOWN, None, "")


def resource_entries(
    table: Mapping[str, ConfigKey],
    overrides: Mapping[str, str],
    source: ConfigSource,
    config: BrokerConfig | None = None,
    wanted: Container[str] | None = None,
) -> list[Entry]:
    """Return the configs of a group or of a client metrics subscription that sets ``overrides``.

    Args: ``config``: the broker's, with the defaults of consumer groups; ``wanted``: names of the configs, None
    for all.
    """
    entries = []
    for name, key in _rows(table, wanted):
        synonyms: list[Synonym] = []
        if config is not None and key.synonym is not None and key.synonym in BROKER_TABLE:
            synonyms += broker_synonyms(config, key.synonym)
        elif source is ConfigSource.DYNAMIC_GROUP_CONFIG:  # a subscription's configs have no synonyms
            synonyms.append((key.synonym or name, key.default, ConfigSource.DEFAULT_CONFIG))
        if name in overrides:
            synonyms.insert(0, (name, key.parse(overrides[name]), source))
        entries.append(_entry(key, synonyms[0][1] if synonyms else key.default, synonyms, False))
    return entries


def broker_synonyms(config: BrokerConfig, name: str) -> list[Synonym]:
    """Return the values of a broker config, the effective one first.

    A finer unit's list continues with the coarser ones (hours after minutes after milliseconds), but Kafka drops the
    entries before the config's own name: an unset log.retention.ms has no synonyms although log.retention.hours is set.
    """
    found: list[Synonym] = []
    base = _base(name)
    others = (
        (base,) if base != name and base in BROKER_TABLE else tuple(fallback for fallback, _ in FALLBACKS.get(name, ()))
    )
    for other in (name, *others):
        found.extend((other, value, source) for source, value in config.sources(other))
    if base == name:
        found.sort(key=lambda synonym: synonym[2])
    while found and found[0][0] != name:
        found.pop(0)
    return found


def _base(name: str) -> str:
    """Return the name of a broker config without the prefix of a listener and of a mechanism."""
    base = of_listener(name)
    if base is None:
        return name
    key = security_key(name)
    return base if key is None else key.name


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
