from collections.abc import Iterable
from typing import Final, Literal, NamedTuple, TypeAlias

from kbroker._core.clock import BaseClock
from kbroker._core.metrics.sensor import Sensor

_ChargeMode: TypeAlias = Literal["permissive", "strict", "unchecked"]

MODES: Final[tuple[str, ...]]

class ChargeDecision(NamedTuple):
    accepted: bool
    throttle_time_ms: int
    throttle_times_ms: tuple[int | None, ...]
    violated: tuple[bool, ...]

def charge(
    charges: Iterable[
        tuple[Sensor | None, float]
        | tuple[Sensor | None, float, _ChargeMode]
        | tuple[Sensor | None, float, _ChargeMode, int | None]
    ],
    time_ms: int | None = None,
    *,
    clock: BaseClock | None = None,
) -> ChargeDecision: ...
