"""What differs between the quotas there are and those that are wanted, and the changes that a request makes of it."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from kbroker.common.quotas import QuotaEntity, enforced_key, is_shadow_key

Values = Mapping[str, float]
Changes = Mapping[str, float | None]


class Difference(NamedTuple):
    """One quota that differs; ``before`` or ``after`` is None where it is not set."""

    entity: QuotaEntity
    key: str
    before: float | None
    after: float | None


def differences(
    current: Mapping[QuotaEntity, Values], wanted: Mapping[QuotaEntity, Values], prune: bool = False
) -> list[Difference]:
    """What must change so that each wanted entity has exactly these quotas; with ``prune``, no other has any."""
    found = []
    for entity in [*wanted, *(other for other in current if prune and other not in wanted)]:
        before, after = current.get(entity, {}), wanted.get(entity, {})
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                found.append(Difference(entity, key, before.get(key), after.get(key)))
    return found


def shadow_differences(
    current: Mapping[QuotaEntity, Values], keys: Collection[str], *, promote: bool
) -> list[Difference]:
    """What must change so that shadow quotas become the enforced ones (``promote``), or are only removed.

    Args: ``keys``: of which quotas, with or without "shadow."; none: all shadows there are.
    """
    wanted = {enforced_key(key) for key in keys}
    found = []
    for entity, values in current.items():
        for key, value in values.items():
            of = enforced_key(key)
            if not is_shadow_key(key) or (wanted and of not in wanted):
                continue
            if promote and values.get(of) != value:
                found.append(Difference(entity, of, values.get(of), value))
            found.append(Difference(entity, key, value, None))
    return found


def changes_for(found: Sequence[Difference]) -> dict[QuotaEntity, dict[str, float | None]]:
    """The differences as one request makes them."""
    ops: dict[QuotaEntity, dict[str, float | None]] = {}
    for entity, key, _, after in found:
        ops.setdefault(entity, {})[key] = after
    return ops
