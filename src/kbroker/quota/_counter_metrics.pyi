from typing import Final

from kbroker.metrics.registry import Metrics

TYPES: Final[tuple[str, ...]]
RATES: Final[tuple[str, ...]]
SHADOW_GROUPS: Final[tuple[str, ...]]

class CounterMetrics:
    @property
    def registry(self) -> Metrics: ...
    def publish_to_registry(self) -> None: ...
