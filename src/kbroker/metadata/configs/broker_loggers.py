"""The broker's loggers as a resource with configs: the key is a logger's name, the value its level in Kafka's words."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from kbroker.common import loggers
from kbroker.common.configs.config_resource import ConfigOperation
from kbroker.common.errors import Errors, KafkaError

ROOT = "root"

_LEVELS: Mapping[str, int] = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_WORDS = {level: word for word, level in _LEVELS.items()}
_OF_KAFKA = ("kafka.authorizer.logger",)  # administrators use Kafka's name of this logger
#: Loggers of modules that are imported when a client first needs them; their levels can be set before.
_OF_COLD_MODULES = (
    "kbroker.apis.api28_txn_offset_commit",
    "kbroker.apis.api34_alter_replica_log_dirs",
    "kbroker.apis.api35_describe_log_dirs",
    "kbroker.common.rolling_files",
    "kbroker.console.app",
    "kbroker.console.history",
    "kbroker.coordinator.consumer_group.background",
    "kbroker.coordinator.consumer_group.group",
    "kbroker.coordinator.consumer_group.membership",
    "kbroker.coordinator.consumer_group.migration",
    "kbroker.coordinator.consumer_group.regexes",
    "kbroker.coordinator.consumer_group.target_assignment",
    "kbroker.coordinator.consumer_groups",
    "kbroker.coordinator.group_coordinator",
    "kbroker.coordinator.group_service",
    "kbroker.coordinator.group_shard",
    "kbroker.coordinator.internal_topic",
    "kbroker.coordinator.modern_groups",
    "kbroker.coordinator.classic_membership",
    "kbroker.coordinator.offset_metadata_manager",
    "kbroker.coordinator.runtime",
    "kbroker.coordinator.modern_group.membership",
    "kbroker.coordinator.share.share_coordinator",
    "kbroker.coordinator.share.share_shard",
    "kbroker.coordinator.share_group.membership",
    "kbroker.coordinator.share_groups",
    "kbroker.coordinator.streams_group.assignor",
    "kbroker.coordinator.streams_group.membership",
    "kbroker.coordinator.transaction.marker_sender",
    "kbroker.coordinator.transaction.transaction_coordinator",
    "kbroker.coordinator.transaction.transaction_log",
    "kbroker.metadata.configs.dynamic_configs",
    "kbroker.observe.mounted_pages",
    "kbroker.request_log.writer",
    "kbroker.share.delayed_share_fetch",
    "kbroker.share.share_partition",
    "kbroker.share.share_partition_manager",
    "kbroker.telemetry.forwarder",
    "kbroker.telemetry.manager",
    "kbroker.telemetry.push_log",
    "kbroker.telemetry.service",
    "kbroker.telemetry.subscriptions",
)


def levels() -> dict[str, str]:
    """Return the broker's loggers, the root first, with their effective levels."""
    known = {*_OF_KAFKA, *logging.root.manager.loggerDict, *loggers.names(), *_OF_COLD_MODULES}
    own = sorted(name for name in known if name.split(".")[0] == "kbroker" or name in _OF_KAFKA)
    found = {}
    for name in (ROOT, *own):
        level = _logger(name).getEffectiveLevel()
        found[name] = _WORDS.get(level, "INFO" if level == logging.NOTSET else logging.getLevelName(level))
    return found


def change_levels(changes: Sequence[tuple[str, int, str | None]], validate_only: bool) -> None:
    """Set (0) levels, or delete (1) them so that the parent's level applies, until the process ends, as in Kafka.

    With ``validate_only`` they are only checked. Raises: KafkaError with Kafka's code and text, before any change.
    """
    known = levels()
    for name, operation, value in changes:
        if operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
            word = {2: "APPEND", 3: "SUBTRACT"}.get(operation, str(operation))
            text = f"{word} operation is not allowed for the BROKER_LOGGER resource"
            raise KafkaError(Errors.INVALID_REQUEST, text)
        if name not in known:
            raise KafkaError(Errors.INVALID_CONFIG, f"Logger {name} does not exist!")
        if operation == ConfigOperation.DELETE and name == ROOT:
            text = f"Removing the log level of the {ROOT} logger is not allowed"
            raise KafkaError(Errors.INVALID_REQUEST, text)
        if operation == ConfigOperation.SET and value not in _LEVELS:
            text = (
                f"Cannot set the log level of {name} to {value} as it is not a supported log level. "
                f"Valid log levels are {', '.join(_LEVELS)}"
            )
            raise KafkaError(Errors.INVALID_CONFIG, text)
    if validate_only:
        return
    for name, operation, value in changes:
        _logger(name).setLevel(logging.NOTSET if operation == ConfigOperation.DELETE else _LEVELS[value or ""])


def _logger(name: str) -> logging.Logger:
    return loggers.of_name(None if name == ROOT else name)
