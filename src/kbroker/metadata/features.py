"""Features of the cluster (KIP-584): the supported levels, and the finalized ones, which UpdateFeatures changes.

A level that this broker does not support counts as the nearest supported level.
Source: ``FeatureControlManager``, ``QuorumFeatures``, ``MetadataVersion``, ``Feature``.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.feature_versions import (
    FIRST_LEVEL,
    KRAFT_VERSION,
    LATEST_RELEASE,
    METADATA_CHANGES,
    METADATA_VERSION,
    RELEASES,
    SERVED_LEVELS,
    unserved,
)
from kbroker.common.loggers import get_logger
from kbroker.metadata.controller import Controller
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record

logger = get_logger(__name__)

#: Minimum and maximum level of each feature of Kafka 4.3.
SUPPORTED: Mapping[str, tuple[int, int]] = {
    name: (FIRST_LEVEL if name == METADATA_VERSION else 0, SERVED_LEVELS.get(name, 0))
    for name in sorted(RELEASES[LATEST_RELEASE])
}
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class FinalizedFeatures(NamedTuple):
    """The finalized level of every supported feature, including 0; ``epoch`` rises with each change.

    ``supported``: minimum and maximum level of each.
    """

    levels: Mapping[str, int]
    epoch: int
    supported: Mapping[str, tuple[int, int]] = SUPPORTED


class FeatureUpdate(NamedTuple):
    """A requested level; ``upgrade_type``: UPGRADE, SAFE_DOWNGRADE or UNSAFE_DOWNGRADE."""

    name: str
    level: int
    upgrade_type: int = UPGRADE


class Features:
    """The features of a cluster.

    Args: ``supported``: the levels of this broker; None: those of a broker that is its own controller.
    Threads: any.
    """

    def __init__(self, controller: Controller, supported: Mapping[str, tuple[int, int]] | None = None) -> None:
        self._controller = controller
        self._supported = SUPPORTED if supported is None else supported
        self.lock = threading.Lock()  # held by the controller during `publish`
        self._hooks: list[Callable[[], None]] = []
        image = controller.image
        self._finalized = self._read(image)
        for sentence in unserved(image.features) if supported is None else ():
            logger.warning("%s", sentence)

    @property
    def finalized(self) -> FinalizedFeatures:
        """Return the finalized features."""
        return self._finalized

    def level(self, name: str) -> int:
        """Return the finalized level of a feature, 0 for an unknown name."""
        return self._finalized.levels.get(name, 0)

    def on_change(self, hook: Callable[[], None]) -> None:
        """Call ``hook`` after each change, before it is acknowledged. The hook must not change features."""
        self._hooks.append(hook)

    def concerns(self, delta: MetadataDelta) -> bool:
        """Return whether the delta changes a feature."""
        return bool(delta.changed_features)

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Put the finalized levels in force, and call the hooks."""
        before = self._finalized
        self._finalized = self._read(image)
        for name in delta.changed_features:
            logger.info("feature %s is at level %d, was at %d", name, self.level(name), before.levels.get(name, 0))
        for hook in self._hooks:
            hook()

    def update(self, updates: Sequence[FeatureUpdate], node_id: int, *, validate_only: bool = False) -> None:
        """Apply all of ``updates``, or none; with ``validate_only`` only check them.

        Raises: KafkaError INVALID_UPDATE_VERSION with the reason; KAFKA_STORAGE_ERROR.
        """

        def plan(image: MetadataImage) -> list[MetadataRecord]:
            levels = self._served(image)
            for update in updates:
                _check(update, levels.get(update.name, 0), node_id)
            return [
                metadata_record("FeatureLevelRecord", {"Name": update.name, "FeatureLevel": update.level})
                for update in updates
                if update.name != KRAFT_VERSION  # its level cannot change, and is in control records
            ]

        if validate_only:
            plan(self._controller.image)
        else:
            self._controller.change(plan, frees_space=True)

    def _read(self, image: MetadataImage) -> FinalizedFeatures:
        return FinalizedFeatures(self._served(image), max(image.offset, 0), self._supported)

    def _served(self, image: MetadataImage) -> dict[str, int]:
        """Return the level of every supported feature: the finalized one, within the supported range."""
        finalized = {**image.features, KRAFT_VERSION: self._controller.kraft_version}
        return {name: min(max(finalized.get(name, 0), low), high) for name, (low, high) in self._supported.items()}


def _check(update: FeatureUpdate, current: int, node_id: int) -> None:
    """Check that a feature can be given this level. Raises: KafkaError, in Kafka's words."""
    name, level, upgrade_type = update
    if upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise _invalid(update, "The controller does not support the given upgrade type.")
    if level < 0:
        raise _invalid(update, "A feature version cannot be less than 0.")
    low, high = SUPPORTED.get(name, (0, 0))
    if not low <= level <= high:
        who = f"Local controller {node_id}"
        raise _invalid(
            update, f"{who} only supports versions {low}-{high}" if high else f"{who} does not support this feature."
        )
    if level < current and upgrade_type == UPGRADE:
        text = "without setting the upgrade type to either safe or unsafe downgrade."
        raise _invalid(update, f"Can't downgrade the version of this feature {text}")
    if level > current and upgrade_type != UPGRADE:
        raise _invalid(update, "Can't downgrade to a newer version.")
    if name == METADATA_VERSION:
        _check_metadata_version(level, current, upgrade_type)
    elif name == KRAFT_VERSION and level != current:
        raise _invalid(update, "The quorum of this broker cannot change it.")
    elif name not in SUPPORTED:
        raise _invalid(update, f"Feature {name} not found.")


def _check_metadata_version(level: int, current: int, upgrade_type: int) -> None:
    if any(level < changed <= current for changed in METADATA_CHANGES):
        why = (
            "Unsafe metadata downgrade is not supported in this version."
            if upgrade_type == UNSAFE_DOWNGRADE
            else "Refusing to perform the requested downgrade because it might delete metadata information."
        )
        text = f"Unsupported metadata.version downgrade from {current} to {level}. {why}"
        raise KafkaError(Errors.INVALID_UPDATE_VERSION, text)


def _invalid(update: FeatureUpdate, why: str) -> KafkaError:
    text = f"Invalid update version {update.level} for feature {update.name}. {why}"
    return KafkaError(Errors.INVALID_UPDATE_VERSION, text)
