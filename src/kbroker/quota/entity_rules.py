"""Rules for the arguments of AlterClientQuotas.

Source: ``ClientQuotaControlManager``, ``QuotaConfig``; codes and first sentences are Kafka's.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kbroker.common.configs.config_def import INT32_MAX, INT64_MAX, ConfigType
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.quotas import (
    CLIENT_KEYS,
    ENTITY_TYPES,
    IP,
    IP_KEYS,
    SHADOW_PREFIX,
    QuotaEntity,
    is_shadow_key,
    with_shadows,
)

# As doubles, their form on the wire, in which the largest LONG is 2**63.
_LARGEST = {ConfigType.INT: float(INT32_MAX), ConfigType.LONG: float(INT64_MAX)}
_LARGE = {ConfigType.INT: "an INT", ConfigType.LONG: "a LONG"}
_WHOLE_WITHIN = 1e-6

# A shadow obeys the rules of its enforced quota: a value that cannot be enforced cannot be tried.
_CLIENT_KEYS = with_shadows(CLIENT_KEYS)
_IP_KEYS = with_shadows(IP_KEYS)
_OR_SHADOW = f', and each with "{SHADOW_PREFIX}" before it'


class QuotaOp(NamedTuple):
    """One key's change; ``value`` is None to remove it."""

    key: str
    value: float | None


class Alteration(NamedTuple):
    """Changes for one entity, applied as a whole."""

    entity: QuotaEntity
    ops: Sequence[QuotaOp]


def check_entity(entity: QuotaEntity, has_address: Callable[[str], bool]) -> Mapping[str, ConfigType]:
    """Return the keys that this entity can have, including those of shadows, with the types of their values.

    Args: ``has_address`` returns whether a name is an address or a host name that resolves.
    Raises: KafkaError INVALID_REQUEST.
    """
    if not entity.parts:
        raise _invalid("Invalid empty client quota entity: name a user, a client-id, both, or an ip")
    for kind, name in entity.parts:
        if kind not in ENTITY_TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind}; there are {_listed(ENTITY_TYPES)}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported: null stands for the default {kind}")
    names = entity.names
    if IP not in names:
        return _CLIENT_KEYS
    if len(names) > 1:
        text = "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"  # Kafka's text
        raise _invalid(text)
    address = names[IP]
    if address is not None and not has_address(address):
        raise _invalid(f"{address} is not a valid IP or resolvable host.")
    return _IP_KEYS


def check_ops(ops: Sequence[QuotaOp], allowed: Mapping[str, ConfigType]) -> dict[str, float | None]:
    """Return the changes by key; a key that is only removed need not exist.

    Raises: KafkaError INVALID_REQUEST for the first invalid one.
    """
    changes: dict[str, float | None] = {}
    for key, value in ops:
        if key in changes:
            raise _invalid(f"Duplicate quota key {key}: give each once")
        if value is not None:
            _check_value(key, value, allowed)
        changes[key] = value
    return changes


def _check_value(key: str, value: float, allowed: Mapping[str, ConfigType]) -> None:
    kind = allowed.get(key)
    if kind is None:
        known = _listed(sorted(one for one in allowed if not is_shadow_key(one)))
        raise _invalid(f"Invalid configuration key {key}; this entity can have {known}{_OR_SHADOW}")
    if math.isnan(value):  # Kafka accepts it, and every comparison with it then fails
        raise _invalid(f"Quota {key} must be a number greater than 0, not NaN")
    if value <= 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    largest = _LARGEST.get(kind)
    if largest is None:
        return
    if value > largest:
        raise _invalid(f"Proposed value for {key} is too large for {_LARGE[kind]}.")
    if math.fmod(value, 1.0) > _WHOLE_WITHIN:
        raise _invalid(f"{key} cannot be a fractional value.")


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _invalid(text: str) -> KafkaError:
    return KafkaError(Errors.INVALID_REQUEST, text)
