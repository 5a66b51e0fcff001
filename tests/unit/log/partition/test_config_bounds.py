"""A log is created, written and reopened with each value that the table of configs accepts."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import INT32_MAX, INT64_MAX, ConfigError, ConfigKey, ConfigType
from kbroker.common.configs.config_topic import TOPIC_KEYS
from kbroker.common.errors import KafkaError
from kbroker.log.compaction.log_cleaner import CompactionConfig
from kbroker.metadata.topic_rules import check_configs
from kbroker.protocol.records import Record, build_batch
from tests.support.log_files import NOW_MS, batch, open_log, read_all

NUMBERS = (-INT64_MAX - 1, -INT32_MAX - 1, -5, -2, -1, 0, 1, 4, 7, 8, 12, 23, 24, 61, 2**20, INT32_MAX, INT64_MAX)
NUMERIC = (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE, ConfigType.SHORT)


def candidates(key: ConfigKey) -> list[str]:
    """Return values at and near the limits of a key, possibly refused by its validator."""
    if key.type in NUMERIC:
        return [str(value) for value in NUMBERS]
    if key.type is ConfigType.BOOLEAN:
        return ["true", "false"]
    return [] if key.validator is None else [word for word in key.validator.allowed.split(", ") if "[" not in word]


def accepted(key: ConfigKey, name: str, config_of: Callable[[dict[str, str]], object]) -> list[str]:
    """Return the candidates that ``config_of`` accepts."""
    found = []
    for value in candidates(key):
        with contextlib.suppress(KafkaError, ConfigError):
            config_of({name: value})
            found.append(value)
    return found


def serve(folder: Path, config: dict[str, Any]) -> None:
    """Create a log, append until it rolls, apply retention, reopen the log, and append."""
    keyed = build_batch([Record(key=b"key", value=b"value", timestamp_ms=NOW_MS)])
    has_room = int(config["max.message.bytes"]) >= len(keyed)
    log = open_log(folder, config=config)
    for expected in range(3):
        info = log.append(keyed)
        assert (info.error, info.base_offset) == ((0, expected) if has_room else (10, -1))
    log.flush()
    log.apply_retention(NOW_MS)
    log.purge_deleted(NOW_MS)
    CompactionConfig.of(config)
    log.update_config(config)
    end, kept = log.log_end_offset, read_all(log)
    log.close()
    again = open_log(folder, config=config, clean=True)
    assert (again.log_end_offset, read_all(again)) == (end, kept)
    assert again.append(keyed).error == (0 if has_room else 10)
    again.close()


@pytest.mark.parametrize("key", TOPIC_KEYS, ids=lambda key: key.name)
def test_topic_configs_that_the_validator_accepts(key: ConfigKey, tmp_path: Path) -> None:
    roomy = {"segment.bytes": "1048576"} if key.name == "preallocate" else {}
    for value in accepted(key, key.name, lambda one: check_configs(one, BrokerConfig({}))):
        serve(tmp_path / f"t{value}-0", dict(BrokerConfig({}).topic_configs({**roomy, key.name: value})))


@pytest.mark.parametrize("key", [key for key in TOPIC_KEYS if key.synonym], ids=lambda key: key.name)
def test_broker_defaults_that_the_validator_accepts(key: ConfigKey, tmp_path: Path) -> None:
    assert key.synonym is not None
    roomy = {"log.segment.bytes": "1048576"} if key.name == "preallocate" else {}
    for value in accepted(key, key.synonym, BrokerConfig):
        serve(tmp_path / f"t{value}-0", dict(BrokerConfig({**roomy, key.synonym: value}).topic_configs({})))


@pytest.mark.parametrize("index_bytes", [4, 7, 8, 12, 23])
def test_a_tiny_index_rolls_no_segment_for_each_append(index_bytes: int, tmp_path: Path) -> None:
    """Small indexes work; Kafka cannot open a log below 12 bytes, and rolls with each append from 12 to 23."""
    log = open_log(tmp_path / "t-0", config={"segment.index.bytes": index_bytes, "index.interval.bytes": 4096})
    for _ in range(10):
        assert log.append(batch(b"value")).error == 0
    assert len(log.segments()) == 1
    log.close()


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("segment.bytes", 61),
        ("segment.ms", 1),
        ("index.interval.bytes", 0),
        ("segment.index.bytes", 0),
        ("max.message.bytes", 0),
        ("file.delete.delay.ms", 0),
        ("flush.messages", 1),
        ("message.timestamp.before.max.ms", 0),
        ("message.timestamp.after.max.ms", 0),
        ("producer.id.expiration.ms", 1),
        ("max.compaction.lag.ms", 1),
    ],
)
def test_least_values(tmp_path: Path, name: str, least: int) -> None:
    """The smallest value of a setting opens a log; a smaller one is refused by its name."""
    config = {"cleanup.policy": "compact"}
    open_log(tmp_path, config={**config, name: least})
    with pytest.raises(ValueError, match=f"^{name} must be between {least} and [0-9]+, got {least - 1}$"):
        open_log(tmp_path / "other", config={**config, name: least - 1})
