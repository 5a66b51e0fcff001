"""Configs that change at run time: checked as in Kafka, stored, and in force when a call returns.

Source: ``ConfigAdminManager``, ``ConfigurationControlManager``, ``DynamicBrokerConfig``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from kbroker.common.configs.config import (
    BROKER_TABLE,
    LISTENER_KEYS,
    TOPIC_TABLE,
    BrokerConfig,
    broker_key,
    described_key,
    listener_key,
    of_listener,
)
from kbroker.common.configs.config_accepted import AUTHORIZER_NAMES, FIXED_NAMES
from kbroker.common.configs.config_def import ConfigError, ConfigKey, ConfigType, Dynamic, to_text
from kbroker.common.configs.config_resource import ConfigChange, ConfigOperation, ConfigResourceType, check_broker_id
from kbroker.common.configs.config_resources import (
    validate_client_metrics_configs,
    validate_group_configs,
)
from kbroker.common.configs.config_security import security_key
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_values import java_split
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import invalid_name_reason
from kbroker.metadata.configs.broker_loggers import change_levels
from kbroker.metadata.configs.resource_configs import broker_configs, config_records
from kbroker.metadata.controller import Controller, NotInForceError, Publisher
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.records.metadata_record import MetadataRecord
from kbroker.metadata.topic_rules import check_configs
from kbroker.metadata.topics import TopicRegistry

logger = get_logger(__name__)


LONGEST_VALUE_BYTES = 32_767  # limit of a string in a DescribeConfigs response

#: Thread counts that Kafka changes by no more than a factor of two at a time.
THREAD_COUNTS = (
    "background.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.follower.thread.pool.size",
    "remote.log.reader.threads",
)


class DynamicConfigs:
    """Changes of the configs of every kind of resource.

    Args: ``publisher``: follows the configs of brokers, and calls ``publish``; ``hooks``: called with the names of
    the changed broker configs; see ``ApiContext.on_broker_change``.
    Threads: any. Locks: the controller's during the checks; that of ``ApiContext`` while a change is put in force.
    """

    def __init__(
        self,
        config: BrokerConfig,
        controller: Controller,
        topics: TopicRegistry,
        publisher: Publisher,
        hooks: Sequence[Callable[[frozenset[str]], None]] = (),
    ) -> None:
        self._config = config
        self._controller = controller
        self._topics = topics
        self._publishers: Mapping[int, Publisher] = {
            ConfigResourceType.TOPIC: topics,
            ConfigResourceType.BROKER: publisher,
        }
        self._hooks = hooks

    # ------------------------------------------------------------ changes

    def alter(self, kind: int, name: str, changes: Sequence[ConfigChange], validate_only: bool = False) -> None:
        """Apply the changes to one resource, all of them or none.

        Raises: KafkaError with Kafka's code and text.
        """
        check_changes(changes)
        self._alter(kind, name, changes, validate_only, replaces=False)

    def replace(
        self, kind: int, name: str, configs: Sequence[tuple[str, str | None]], validate_only: bool = False
    ) -> None:
        """Give one resource exactly these configs (AlterConfigs).

        Raises: KafkaError with Kafka's code and text.
        """
        changes = [ConfigChange(key, ConfigOperation.SET, value) for key, value in configs]
        check_changes(changes)
        if kind == ConfigResourceType.BROKER_LOGGER:
            raise _unknown_type(kind)
        self._alter(kind, name, changes, validate_only, replaces=True)

    def _alter(
        self, kind: int, name: str, changes: Sequence[ConfigChange], validate_only: bool, replaces: bool
    ) -> None:
        if kind == ConfigResourceType.BROKER_LOGGER:
            check_broker_id(name, self._config.node_id, unexpected="Unexpected node id. Expected {0}, but received {2}")
            change_levels([(change.name, change.operation, change.value) for change in changes], validate_only)
            return
        resource = str(self._config.node_id) if kind == ConfigResourceType.BROKER and name else name
        before: Mapping[str, str] = {}
        after: Mapping[str, str] = {}

        def plan(image: MetadataImage) -> Sequence[MetadataRecord]:
            nonlocal before, after
            before = image.configs.get((kind, resource), {})
            after = self._checked(image, kind, name, {} if replaces else before, changes)
            return config_records(kind, resource, before, after)

        if validate_only or kind == ConfigResourceType.BROKER:
            plan(self._controller.image)
            if kind == ConfigResourceType.BROKER:  # not under the controller's lock: every topic is examined
                self._topics.check_defaults(self._with_configs(self._controller.image, after, bool(name)))
        if validate_only:
            return
        try:
            self._controller.change(plan, publisher=self._publishers.get(kind), frees_space=True)
        except NotInForceError as failure:
            self._take_back(kind, resource, before, after)
            raise failure.cause from None
        ignored = _without_authorizer(changes)[1] if kind == ConfigResourceType.BROKER else ""
        if ignored:
            logger.warning("a change of %s at run time has no effect, as in Kafka: set it before a start", ignored)
        if kind == ConfigResourceType.TOPIC:
            logger.info("topic %s has the configs %s now", name, self._controller.image.configs.get((kind, name), {}))

    def _take_back(self, kind: int, resource: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Restore the configs from before a change that is not in force, except those that were changed again since."""
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]

        def plan(image: MetadataImage) -> Sequence[MetadataRecord]:
            now = image.configs.get((kind, resource), {})
            mine = [name for name in names if now.get(name) == after.get(name)]
            restored = {name: value for name, value in now.items() if name not in mine}
            restored |= {name: before[name] for name in mine if name in before}
            return config_records(kind, resource, now, restored)

        with contextlib.suppress(NotInForceError):  # the controller has logged it
            self._controller.change(plan, frees_space=True)

    def _checked(
        self, image: MetadataImage, kind: int, name: str, base: Mapping[str, str], changes: Sequence[ConfigChange]
    ) -> Mapping[str, str]:
        """Return the configs of a resource after the changes. Raises: KafkaError."""
        if kind == ConfigResourceType.TOPIC:
            return self._checked_topic(image, name, base, changes)
        if kind == ConfigResourceType.BROKER:
            return self._checked_broker(image, name, base, changes)
        if kind == ConfigResourceType.GROUP:
            return _checked_stored(
                "Default group resources are not allowed.",
                lambda one: validate_group_configs(one, self._setting),
                name,
                base,
                changes,
            )
        if kind == ConfigResourceType.CLIENT_METRICS:
            return _checked_stored(
                "Subscription name can't be empty", validate_client_metrics_configs, name, base, changes
            )
        raise _unknown_type(kind)

    def _checked_topic(
        self, image: MetadataImage, name: str, base: Mapping[str, str], changes: Sequence[ConfigChange]
    ) -> Mapping[str, str]:
        def default(key: ConfigKey) -> str:
            return to_text(self._config.topic_default(key.name)) or ""

        configs = _applied(base, changes, TOPIC_TABLE, default, _not_a_list)
        if not name:
            raise KafkaError(Errors.INVALID_REQUEST, "Default topic resources are not allowed.")
        reason = invalid_name_reason(name)
        if reason is not None:
            raise KafkaError(Errors.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")
        check_configs(configs, self._config)
        self._topics.resolve(configs)
        if name not in image.topics:
            raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return configs

    def _checked_broker(
        self, image: MetadataImage, name: str, base: Mapping[str, str], changes: Sequence[ConfigChange]
    ) -> Mapping[str, str]:
        if name:
            check_broker_id(name, self._config.node_id)
        for change in changes:
            if change.operation not in ConfigOperation._value2member_map_:
                raise KafkaError(Errors.INVALID_REQUEST, f"Unknown operations type {change.operation}")
        configs = _applied(
            base,
            _without_authorizer(changes)[0],
            BROKER_TABLE,
            lambda key: to_text(key.default) or "",
            _not_a_broker_list,
        )
        configs = _without_secrets(configs)
        try:
            self._with_configs(image, configs, per_broker=bool(name))
        except ConfigError as error:
            raise KafkaError(Errors.INVALID_REQUEST, str(error)) from error
        return configs

    # ------------------------------------------------------------ effect

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Put the changed configs of this broker in force."""
        node_id = self._config.node_id
        if not {(ConfigResourceType.BROKER, str(node_id)), (ConfigResourceType.BROKER, "")} & delta.changed_configs:
            return
        stored = broker_configs(image, node_id)
        fresh = self._config.with_dynamic(*stored)
        names = set().union(*stored, *broker_configs(delta.image, node_id))
        changed = frozenset(
            name for name in names if broker_key(name) is not None and self._config.value(name) != fresh.value(name)
        )
        self._config.set_dynamic(*stored)
        self._topics.refresh_configs()
        for hook in self._hooks:
            hook(changed)
        logger.info("broker configs changed: %s", ", ".join(sorted(changed)) or "none in force")

    def _with_configs(self, image: MetadataImage, configs: Mapping[str, str], per_broker: bool) -> BrokerConfig:
        """Return the configuration with changed configs, after all checks of Kafka. Raises: ConfigError."""
        fixed = [name for name in configs if _is_fixed(name)]
        if fixed:
            raise ConfigError("", fixed, f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
        known = {name: key for name in configs if (key := described_key(name)) is not None}
        dynamic = {name: key for name, key in known.items() if key.dynamic is not Dynamic.READ_ONLY}
        _check_types(configs, dynamic)
        own = [name for name in configs if _is_of_one_broker(name)]
        if own and not per_broker:
            text = "Cannot update these configs at default cluster level, broker id must be specified"
            raise ConfigError("", own, f"{text}: [{', '.join(own)}]")
        _check_types(configs, known)
        broker, default = broker_configs(image, self._config.node_id)
        fresh = self._config.with_dynamic(configs if per_broker else broker, default if per_broker else configs)
        for name in THREAD_COUNTS:
            _check_thread_count(name, self._config.integer(name), fresh.integer(name))
        _check_listener_limits(self._config, fresh)
        for listener in fresh.listeners:
            threads = listener_key(listener.name, "num.network.threads")
            _check_thread_count("num.network.threads", self._config.integer(threads), fresh.integer(threads))
        _check_local_retention(fresh)
        _check_cleaner_threads(self._config.integer("log.cleaner.threads"), fresh.integer("log.cleaner.threads"))
        return fresh

    def _setting(self, name: str) -> int | None:
        return self._config.integer(name) if name in BROKER_TABLE else None


def _checked_stored(
    nameless: str,
    validate: Callable[[Mapping[str, str]], None],
    name: str,
    base: Mapping[str, str],
    changes: Sequence[ConfigChange],
) -> Mapping[str, str]:
    """Return the configs of a group or a client metrics subscription after the changes. Raises: KafkaError.

    Args: ``nameless``: the error of a resource without a name.
    APPEND and SUBTRACT are refused, as in Kafka, whose controller has the types of topic and broker configs only.
    """
    configs = _applied(base, changes, {}, lambda key: "", _not_a_list)
    if not name:
        raise KafkaError(Errors.INVALID_REQUEST, nameless)
    try:
        validate(configs)
    except ConfigError as error:
        raise KafkaError(Errors.INVALID_CONFIG, str(error)) from error
    return configs


def _is_fixed(name: str) -> bool:
    """Return whether a broker config applies only at start, so that a change at run time would have no effect."""
    base = of_listener(name)
    if base is not None:  # only the security of a listener is fixed
        return security_key(name) is not None or base.startswith("ssl.") or "sasl." in base
    key = BROKER_TABLE.get(name)
    return name in FIXED_NAMES or (key is not None and key.dynamic is Dynamic.READ_ONLY)


def _is_of_one_broker(name: str) -> bool:
    """Return whether a broker config cannot be set for all brokers at once."""
    base = of_listener(name)
    if base is not None:
        return base not in LISTENER_KEYS
    key = broker_key(name)
    return key is not None and key.dynamic is Dynamic.PER_BROKER


def _check_types(configs: Mapping[str, str], keys: Mapping[str, ConfigKey]) -> None:
    """Check the type of each value. Raises: ConfigError, which names a listener's config without its prefix."""
    for name, key in keys.items():
        key._replace(name=of_listener(name) or name).parse(configs[name])


def _without_authorizer(changes: Sequence[ConfigChange]) -> tuple[Sequence[ConfigChange], str]:
    """Return the changes that count, and the names of those that Kafka accepts and ignores, joined by commas."""
    ignored = [
        one
        for one in changes
        if one.name in AUTHORIZER_NAMES and one.operation in (ConfigOperation.SET, ConfigOperation.DELETE)
    ]
    if not ignored:
        return changes, ""
    return [one for one in changes if one not in ignored], ", ".join(one.name for one in ignored)


def _without_secrets(configs: Mapping[str, str]) -> dict[str, str]:
    """Return the configs with empty values for unknown names: such a value has no effect, and may be a secret."""
    return {name: "" if described_key(name) is None else text for name, text in configs.items()}


def check_changes(changes: Sequence[ConfigChange]) -> None:
    nulls = [change.name for change in changes if change.value is None and change.operation != ConfigOperation.DELETE]
    if nulls:
        raise KafkaError(Errors.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")
    if len({change.name for change in changes}) != len(changes):
        raise KafkaError(Errors.INVALID_REQUEST, "Error due to duplicate config keys")


def _applied(
    base: Mapping[str, str],
    changes: Sequence[ConfigChange],
    table: Mapping[str, ConfigKey],
    default: Callable[[ConfigKey], str],
    refusal: Callable[[ConfigOperation, str], str],
) -> dict[str, str]:
    """Return the configs after the changes. Raises: KafkaError."""
    configs = dict(base)
    for name, number, value in changes:
        try:
            operation = ConfigOperation(number)
        except ValueError:
            raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, "") from None  # Kafka has no message either
        if operation is ConfigOperation.DELETE:
            configs.pop(name, None)
            continue
        assert value is not None
        if operation is ConfigOperation.SET:
            configs[name] = value
            continue
        key = table.get(name)
        if key is None or key.type is not ConfigType.LIST:
            raise KafkaError(Errors.INVALID_CONFIG, refusal(operation, name))
        words = [word for word in java_split(configs.get(name, default(key)), ",") if word]
        given = java_split(value, ",")
        if operation is ConfigOperation.APPEND:
            words += [word for word in dict.fromkeys(given) if word not in words]
            size_bytes = len(",".join(words).encode(errors="surrogatepass"))
            if size_bytes > LONGEST_VALUE_BYTES:
                text = f"Expected a value of {name} of at most {LONGEST_VALUE_BYTES} bytes, got {size_bytes} with"
                raise KafkaError(Errors.INVALID_CONFIG, f"{text} the appended values. Subtract values, or set others.")
        else:
            for word in given:
                if word in words:
                    words.remove(word)
        configs[name] = ",".join(words)
    return configs


def _not_a_list(operation: ConfigOperation, name: str) -> str:
    return f"Can't {operation.name} to key {name} because its type is not LIST."


def _not_a_broker_list(operation: ConfigOperation, name: str) -> str:
    if name not in BROKER_TABLE:
        return f"Unknown config name: {name}"
    return f"Config value {operation.name.lower()} is not allowed for config key: {name}"


def _check_thread_count(name: str, old: int, new: int) -> None:
    text = f"Dynamic thread count update validation failed for {name}={new}"
    if new < old // 2:
        raise ConfigError("", new, f"{text}, value should be at least half the current value {old}")
    if new > old * 2:
        raise ConfigError("", new, f"{text}, value should not be greater than double the current value {old}")


def _check_listener_limits(old: BrokerConfig, new: BrokerConfig) -> None:
    """Check that no changed limit, of a listener or of the broker, excludes all clients. Raises: ConfigError."""
    for listener in new.listeners:
        for name in sorted(LISTENER_KEYS):
            key = listener_key(listener.name, name)
            if new.integer(key) <= 0 and new.value(key) != old.value(key):
                raise ConfigError("", 0, f"Invalid {name} {new.integer(key)}")


def _check_local_retention(fresh: BrokerConfig) -> None:
    """Check that local retention is at most the whole retention (``DynamicLogConfig``). Raises: ConfigError."""
    for unit, kept in (("ms", fresh.topic_default("retention.ms")), ("bytes", fresh.value("log.retention.bytes"))):
        name, of = f"log.local.retention.{unit}", f"log.retention.{unit}"
        local = fresh.integer(name)
        if not isinstance(kept, int) or local == -2 or kept == -1:
            continue
        if local == -1:
            raise ConfigError(name, local, f"Value must not be -1 as {of} value is set as {kept}.")
        if local > kept:
            raise ConfigError(name, local, f"Value must not be more than {of} property value: {kept}")


def _check_cleaner_threads(old: int, new: int) -> None:
    if new == old:
        return
    if new < 1:
        raise ConfigError("", new, "Log cleaner threads should be at least 1")
    if new < old // 2:
        raise ConfigError("", new, f"Log cleaner threads cannot be reduced to less than half the current value {old}")
    if new > old * 2:
        raise ConfigError(
            "", new, f"Log cleaner threads cannot be increased to more than double the current value {old}"
        )


def _unknown_type(kind: int) -> KafkaError:
    return KafkaError(Errors.INVALID_REQUEST, f"Unknown resource type {kind}")
