"""The log manager starts, serves and stops with every accepted value of the broker's log configs."""

import contextlib
import uuid
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import INT32_MAX, INT64_MAX, ConfigError, ConfigKey, ConfigType
from kbroker.common.configs.config_log import LOG_KEYS
from kbroker.log.folder_scan import TopicLogs
from kbroker.log.manager import LogManager
from tests.support.log_files import NOW_MS, batch

NUMBERS = (-INT64_MAX - 1, -5, 0, 1, 7, INT32_MAX, INT64_MAX)
NUMERIC = [key for key in LOG_KEYS if key.type in (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE)]
MEMORY_MIB = 160  # the default cleaner map has 128 MiB


def accepted(name: str) -> list[BrokerConfig]:
    found = []
    for value in NUMBERS:
        with contextlib.suppress(ConfigError):
            found.append(BrokerConfig({name: str(value)}))
    return found


@pytest.mark.parametrize("key", NUMERIC, ids=lambda key: key.name)
def test_values_that_the_validator_accepts(key: ConfigKey, tmp_path: Path) -> None:
    """A manager with each accepted value starts, appends, runs its tasks for an hour, and stops."""
    for number, config in enumerate(accepted(key.name)):
        value = config.value(key.name)
        assert isinstance(value, (int, float))
        if key.name in ("log.cleaner.threads", "num.recovery.threads.per.data.dir") and value > 1000:
            continue  # enough threads would exhaust memory
        if key.name == "log.cleaner.dedupe.buffer.size" and value > MEMORY_MIB << 20:
            continue
        clock = VirtualClock(NOW_MS)
        manager = LogManager([tmp_path / str(number)], clock, config)
        report = manager.start([TopicLogs("t", uuid.UUID(int=7), 1, config.topic_configs({}))], run_threads=False)
        assert report.failures == {}, value
        log = manager.partition("t", 0)
        assert log.append(batch(b"value")).error == (10 if config.integer("message.max.bytes") < 70 else 0), value
        manager.reconfigure(frozenset({key.name}))
        for step_ms in (1000, 60_000, 3_600_000):
            clock.advance_ms(step_ms)
            manager.scheduler.run_due()
        manager.close()
