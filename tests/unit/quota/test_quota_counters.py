"""Maximum number of counters of clients without their own quota, their eviction, and their registration."""

import random

import pytest

from kbroker.quota._entities import DEFAULT_ENTITY
from tests.support import quotas
from tests.support.quotas import PRODUCE


class Bench(quotas.Bench):
    """Managers with a small maximum number of counters."""

    def __init__(self, max_counters: int) -> None:
        super().__init__(max_counters=max_counters)

    def record(self, client_id: str, size_bytes: float, user: str = "u") -> int:
        return self.produce.record_and_get_throttle(user, client_id, size_bytes)

    @property
    def known(self) -> set[str]:
        """Return the client ids with a counter, prefixed with the user if the counter has a user tag."""
        names = (
            name.tag_map for name, _ in self.registry.items() if (name.name, name.group) == ("byte-rate", "Produce")
        )
        return {f"{tags['user']}/{tags['client-id']}".lstrip("/") for tags in names}


def test_the_one_that_was_quiet_the_longest_goes() -> None:
    """A new client id replaces the counter that was idle the longest."""
    bench = Bench(3)
    bench.managers.update(None, DEFAULT_ENTITY, PRODUCE, 1000)
    for client_id in ("a", "b", "c", "a"):
        bench.record(client_id, 1)
        bench.clock.advance_ms(1)
    bench.record("d", 1)
    assert bench.known == {"a", "c", "d"}
    bench.clock.advance_ms(1)
    bench.record("b", 1)
    assert bench.known == {"a", "b", "d"}


def test_those_over_their_quota_stay() -> None:
    """A client over its quota is not evicted to make room for new client ids."""
    bench = Bench(3)
    bench.managers.update(None, DEFAULT_ENTITY, PRODUCE, 1000)
    assert bench.record("debtor", 12_000) == 2000
    bench.clock.advance_ms(500)
    for number in range(50):
        bench.record(f"made-up-{number}", 1)
        bench.clock.advance_ms(1)
    assert bench.known == {"debtor", "made-up-48", "made-up-49"}
    assert bench.record("debtor", 0) == 1450  # 12 s of quota in a window of 10.55 s
    bench.clock.advance_ms(11_000)  # the excess has left the window
    bench.record("x", 1)
    bench.clock.advance_ms(1)
    bench.record("y", 1)
    bench.clock.advance_ms(1)
    bench.record("z", 1)
    assert bench.known == {"x", "y", "z"}


def test_where_all_are_over_their_quota_one_goes_nevertheless() -> None:
    """The maximum holds even if every client is over its quota."""
    bench = Bench(3)
    bench.managers.update(None, DEFAULT_ENTITY, PRODUCE, 1)
    for number in range(100):
        assert bench.record(f"c{number}", 1000) > 0
        bench.clock.advance_ms(1)
        assert len(bench.known) <= 3
    assert bench.record("new", 1) == 0


@pytest.mark.parametrize(("user", "client_id"), [("u", "named"), ("named", "c"), ("named", "named")])
def test_counters_of_the_settings_stay(user: str, client_id: str) -> None:
    """The counter of a client with its own quota is not evicted."""
    bench = Bench(2)
    bench.managers.update(None, DEFAULT_ENTITY, PRODUCE, 1000)
    bench.managers.update(user if user == "named" else None, client_id if client_id == "named" else None, PRODUCE, 1000)
    assert bench.record(client_id, 11_000, user) == 1000
    bench.clock.advance_ms(9000)
    for number in range(20):
        bench.clock.advance_ms(1)
        bench.record(f"made-up-{number}", 1)
    assert bench.record(client_id, 0, user) == 980  # 11 s of quota in a window of 10.02 s
    assert len(bench.known) == 3


@pytest.mark.parametrize(
    ("user", "client_id"), [(None, "named"), ("named", "named"), ("named", None), (DEFAULT_ENTITY, "named")]
)
def test_client_ids_without_any_quota_are_bounded(user: str | None, client_id: str | None) -> None:
    """Counters of client ids to which no quota applies are limited as well."""
    bench = Bench(2)
    bench.managers.update(user, client_id, PRODUCE, 1000)
    bench.managers.update(None, "other", PRODUCE, 1000)
    for number in range(20):
        bench.clock.advance_ms(1)
        assert bench.record(f"made-up-{number}", 1_000_000) == 0
    assert bench.known == {"made-up-18", "made-up-19"}


def test_a_counter_whose_client_gets_its_own_quota_stays() -> None:
    """A counter is evicted only while no quota names its client id, whichever was there when it was created."""
    bench = Bench(2)
    bench.managers.update(None, DEFAULT_ENTITY, PRODUCE, 1000)
    bench.record("named", 5000)
    bench.managers.update(None, "named", PRODUCE, 1000)
    for number in range(20):
        bench.clock.advance_ms(1)
        bench.record(f"made-up-{number}", 1)
    assert bench.known == {"named", "made-up-18", "made-up-19"}
    bench.managers.update(None, "named", PRODUCE, None)
    for number in range(20, 40):
        bench.clock.advance_ms(1)
        bench.record(f"made-up-{number}", 1)
    assert "named" not in bench.known
    assert len(bench.known) == 3  # as many as there were then


def test_each_type_has_its_own_room() -> None:
    """The maximum applies to each type of quota separately."""
    bench = Bench(2)
    for key in (PRODUCE, "consumer_byte_rate"):
        bench.managers.update(None, DEFAULT_ENTITY, key, 1000)
    bench.managers.fetch.record_and_get_throttle("u", "a", 10_500)
    for number in range(10):
        bench.clock.advance_ms(1)
        bench.record(f"c{number}", 1)
    assert bench.managers.fetch.record_and_get_throttle("u", "a", 500) == 990  # 11 s of quota in 10.01 s


@pytest.mark.parametrize("seed", range(5))
def test_order_of_use_is_exact(seed: int) -> None:
    """Eviction follows the order of the latest records, compared with an ordered dictionary as the model."""
    bench, rng = Bench(12), random.Random(seed)
    bench.managers.update(None, DEFAULT_ENTITY, PRODUCE, 1e12)
    bench.managers.update("v", DEFAULT_ENTITY, PRODUCE, 1e12)
    model: dict[str, None] = {}
    for step in range(1500):
        bench.clock.advance_ms(rng.choice((1, 1, 1, 5000)))
        user, client_id = rng.choice("uv"), f"c{int(rng.expovariate(0.15))}"
        bench.record(client_id, 1, user)
        name = f"v/{client_id}" if user == "v" else client_id
        model.pop(name, None)
        model[name] = None
        if len(model) > 12:
            del model[next(iter(model))]
        if rng.random() < 0.1 or step % 100 == 99:
            assert bench.known == set(model)
        if rng.random() < 0.01:
            bench.clock.advance_ms(rng.choice((3_590_000, 3_700_000)))
            bench.record("kept", 1)
            model.pop("kept", None)
            if len(model) == 12:
                del model[next(iter(model))]
            model["kept"] = None
            gone = len(bench.managers.expire_inactive()) // 2
            for _ in range(gone):
                del model[next(iter(model))]
    assert bench.known == set(model)


def test_notifying_the_registry_is_bounded() -> None:
    """One look-up publishes a limited number of counters: 10,500 at once blocked every reader of metrics for 1.3 s."""
    bench = Bench(2000)
    bench.managers.update(None, DEFAULT_ENTITY, PRODUCE, 1000)
    for number in range(1200):
        bench.record(f"c{number}", 1)
    assert bench.known == {f"c{number}" for number in range(500)}
    assert len(bench.known) == 1000
    assert len(bench.known) == 1200


def test_counters_that_came_and_went_unseen_leave_nothing_behind() -> None:
    """Counters that are evicted before publication stay neither in the registry nor in the list of new counters."""
    bench = Bench(10)
    bench.managers.update(None, DEFAULT_ENTITY, PRODUCE, 1000)
    metrics = len(bench.registry)
    for _ in range(3):
        for number in range(1000):
            bench.record(f"c{number}", 1)
            bench.clock.advance_ms(1)
        assert bench.known == {f"c{number}" for number in range(990, 1000)}
        assert len(bench.registry) == metrics + 2 * 10


def test_a_handle_of_a_counter_that_was_not_published() -> None:
    """A sensor that is requested by name is registered once and removed with its counter."""
    bench = Bench(1)
    bench.managers.update(None, DEFAULT_ENTITY, PRODUCE, 1000)
    sensor = bench.produce.sensor("u", "a")
    assert bench.registry.get_sensor("Produce-:a") is sensor
    bench.clock.advance_ms(1)
    bench.record("b", 1)
    assert sensor.is_removed
    assert bench.registry.get_sensor("Produce-:a") is None
    assert bench.known == {"b"}


def test_client_ids_with_the_same_text_have_a_counter_each() -> None:
    """Neither counter of two names that are not UTF-8 is reset; metrics show the first one."""
    bench = Bench(10)
    bench.managers.update(None, DEFAULT_ENTITY, PRODUCE, 1000)
    assert bench.record("\udcff", 12_000) == 2000
    assert bench.known == {"\ufffd"}
    assert bench.record("\udcfe", 11_000) == 1000
    assert bench.known == {"\ufffd"}
    sensor = bench.produce.sensor("u", "\udcfe")
    assert [metric.measure() for metric in sensor.metrics.values()] == [1100]
    assert (bench.record("\udcff", 0), bench.record("\udcfe", 0)) == (2000, 1000)


@pytest.mark.parametrize("value", [0, -1])
def test_there_is_room_for_one_at_least(value: int) -> None:
    """A maximum of 0 is refused, because without counters no quota applies."""
    with pytest.raises(ValueError, match="max_counters must be >= 1"):
        Bench(value)
