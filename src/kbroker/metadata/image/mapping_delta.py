"""Changes to the mappings of an image: new mappings are copies, and those without a change stay the same objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class MappingDelta(Generic[K, V]):
    """Changes to a mapping.

    Attributes:
        before: the mapping, which is never changed.
        changes: the new value of each changed key, None for a removed one.
    """

    __slots__ = ("before", "changes")

    def __init__(self, before: Mapping[K, V]) -> None:
        self.before = before
        self.changes: dict[K, V | None] = {}

    def get(self, key: K) -> V | None:
        """Return the value of a key after the changes, None if the key is absent."""
        return self.changes[key] if key in self.changes else self.before.get(key)

    def change_to(self, after: Mapping[K, V]) -> None:
        """Replace all changes by those that turn the mapping into another one."""
        self.changes = differences(self.before, after)

    def apply(self) -> Mapping[K, V]:
        """Return the mapping after the changes, the same object if there are none."""
        return merged(self.before, self.changes) if self.changes else self.before


class EntitiesDelta(Generic[K, V]):
    """Changes to a mapping of entities to their settings by name; an entity without settings is not in the mapping.

    Attributes:
        before: the mapping, which is never changed.
        changes: by entity the new value of each changed setting, None for a removed one.
    """

    __slots__ = ("before", "changes")

    def __init__(self, before: Mapping[K, Mapping[str, V]]) -> None:
        self.before = before
        self.changes: dict[K, dict[str, V | None]] = {}

    def set(self, entity: K, name: str, value: V | None) -> None:
        """Change a setting; None removes it."""
        self.changes.setdefault(entity, {})[name] = value

    def remove(self, entity: K) -> None:
        """Remove all settings of an entity, earlier changes included."""
        if entity in self.before:
            self.changes[entity] = dict.fromkeys(self.before[entity])
        else:
            self.changes.pop(entity, None)

    def change_to(self, after: Mapping[K, Mapping[str, V]]) -> None:
        """Add the changes that turn the mapping into another one, to a delta without changes."""
        for entity in {*self.before, *after}:
            changes = differences(self.before.get(entity, {}), after.get(entity, {}))
            if changes:
                self.changes[entity] = changes

    def apply(self) -> Mapping[K, Mapping[str, V]]:
        """Return the mapping after the changes, the same object if there are none."""
        if not self.changes:
            return self.before
        after = dict(self.before)
        for entity, changes in self.changes.items():
            settings = merged(self.before.get(entity, {}), changes)
            if settings:
                after[entity] = settings
            else:
                after.pop(entity, None)
        return after


def differences(before: Mapping[K, V], after: Mapping[K, V]) -> dict[K, V | None]:
    """Return the changes from one mapping to another, None for a removed key."""
    changes: dict[K, V | None] = {key: value for key, value in after.items() if before.get(key) != value}
    changes.update(dict.fromkeys(key for key in before if key not in after))
    return changes


def merged(before: Mapping[K, V], changes: Mapping[K, V | None]) -> dict[K, V]:
    """Return a changed copy of a mapping; the value None removes a key."""
    after = dict(before)
    for key, value in changes.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    return after
