"""Client quota managers over a registry and a virtual clock, for tests without a broker."""

from kbroker._core.clock import VirtualClock
from kbroker._core.metrics.metric import Metric
from kbroker.metrics.registry import MetricName, Metrics
from kbroker.quota._client_quotas import ClientQuotaManagers

PRODUCE, FETCH, REQUEST, MUTATION = KEYS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
)
START_MS = 1_700_000_000_000


class Bench:
    """Client quota managers with their own registry and clock."""

    def __init__(self, **settings: int) -> None:
        self.clock = VirtualClock(START_MS)
        self.registry = Metrics(clock=self.clock, expires=True)
        self.managers = ClientQuotaManagers(self.clock, self.registry, **settings)
        self.produce, self.fetch, self.request, self.mutation = self.managers.enforced
        self.update = self.managers.update

    def metric(self, name: str, group: str, **tags: str) -> Metric:
        pairs = {tag.replace("_", "-"): value for tag, value in tags.items()}
        found = self.registry.get(MetricName.of(name, group, pairs))
        assert isinstance(found, Metric)
        return found
