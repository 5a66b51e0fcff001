"""Random histories of requests, whose responses are compared with Apache Kafka's, field by field."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.conformance.talk import look_at
from tests.integration.against_kafka.conftest import AT_ONCE, SETTINGS, SHORT_TIMES
from tests.support import need, seeds
from tests.support.broker import BrokerProcess
from tests.support.histories import configs, entities, topics
from tests.support.histories.elapsed import NEWER
from tests.support.histories.mixes import KEPT, MIXES, OF_OTHER_TIMES, history, with_kills
from tests.support.histories.replay import Differing, Pair
from tests.support.histories.shortest import shortest_part
from tests.support.histories.steps import Step
from tests.support.kafka import ApacheKafka

CONFIRMATIONS = 5  # Kafka's choices may depend on random ids and on time
PROTOCOLS = {
    "group.coordinator.rebalance.protocols": "classic,consumer,streams",
    "group.initial.rebalance.delay.ms": "0",
    **SHORT_TIMES,
}
OTHER_TIMES = {
    **{f"group.{kind}.min.session.timeout.ms": "500" for kind in NEWER},
    **{f"group.{kind}.min.heartbeat.interval.ms": "100" for kind in NEWER},
    "group.share.min.record.lock.duration.ms": "1000",
    "group.initial.rebalance.delay.ms": "1000",
}
AUTHORIZED = {name: SETTINGS[name] for name in ("authorizer.class.name", "super.users")}


def paired(kafka: str, kbroker: BrokerProcess) -> Pair:
    def kill() -> None:
        kbroker.kill()
        kbroker.start()
        topics.prepare(kbroker.bootstrap)  # waits for partitions and coordinators

    addresses = (kafka, kbroker.bootstrap)
    return Pair([look_at(address) for address in addresses], [topics.prepare(address) for address in addresses], kill)


def compare(pair: Pair, mix: str, count: int, *, kills: bool = False) -> None:
    """Replay histories of one mix; a history that fails in each of several replays is reduced."""
    first = seeds.history_seed()
    for seed in range(first, first + count):
        steps = with_kills(history(mix, seed), seed) if kills else history(mix, seed)
        found = pair.differing(steps)
        if found and pair.confirmed(steps, found.step.api, CONFIRMATIONS):
            part, difference = reduced(pair, steps[: found.number + 1], found)
            shown = "\n".join(str(step) for step in part)
            pytest.fail(f"KBROKER_SEED={seed}, {mix}:\n{shown}\n{difference}", pytrace=False)


def reduced(pair: Pair, steps: list[Step], found: Differing, times: int = 2) -> tuple[list[Step], Differing]:
    """Return the shortest part of a history that still fails, and its difference."""
    part = shortest_part(steps, lambda part: pair.confirmed(part, found.step.api, times) is not None)
    return part, pair.confirmed(part, found.step.api, 1) or found


def started(folder: Path, settings: Mapping[str, str]) -> BrokerProcess:
    return BrokerProcess(folder / "data", {**AT_ONCE, **PROTOCOLS, **settings})


@pytest.fixture(scope="module")
def pair(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The folder's Apache Kafka and a kbroker; objects that all histories use are removed afterwards."""
    with started(tmp_path_factory.mktemp("histories"), AUTHORIZED) as kbroker:
        found = paired(kafka, kbroker)
        yield found
        found.differing([configs.begin(), entities.begin()])


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("mix", [mix for mix in MIXES if mix not in OF_OTHER_TIMES])
def test_responses_of_histories_are_apache_kafkas(pair: Pair, mix: str) -> None:
    """Each response of a history equals Apache Kafka's, except for deliberate differences."""
    compare(pair, mix, seeds.history_count(1, 100))


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("mix", KEPT)
def test_responses_after_kills_are_apache_kafkas(pair: Pair, mix: str) -> None:
    """Kills of kbroker between the requests of a history change no response."""
    compare(pair, mix, seeds.history_count(1, 20), kills=True)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("mix", OF_OTHER_TIMES)
def test_sessions_and_locks_of_histories_expire_as_in_apache_kafka(tmp_path: Path, mix: str) -> None:
    """Members of the newer protocols and locks of records expire, and first joins wait; each response is Kafka's."""
    need.program("java", "mvn")
    settings = {**AT_ONCE, **PROTOCOLS, **OTHER_TIMES}
    with ApacheKafka(settings) as kafka, started(tmp_path, OTHER_TIMES) as kbroker:
        compare(paired(kafka.bootstrap, kbroker), mix, seeds.history_count(1, 50))


@pytest.mark.slow
def test_a_difference_is_found_and_reduced(tmp_path: Path) -> None:
    """The history of a broker that refuses a second member is reduced to the steps that cause the refusal."""
    with started(tmp_path / "one", {}) as one, started(tmp_path / "other", {"group.consumer.max.size": "1"}) as other:
        pair = paired(one.bootstrap, other)
        seed = next(seed for seed in range(1, 50) if pair.differing(history("consumer", seed)))
        steps = history("consumer", seed)
        found = pair.differing(steps)
        assert found is not None
        part, _ = reduced(pair, steps[: found.number + 1], found, times=1)
    assert [step.api for step in part] == ["ConsumerGroupHeartbeat", "ConsumerGroupHeartbeat"]
    assert {step.body["MemberEpoch"] for step in part} == {0}


def test_the_shortest_part_keeps_what_fails() -> None:
    """No element of the shortest part can be left out; the number of trials is limited."""
    assert shortest_part(range(20), lambda part: {3, 17} <= {*part}) == [3, 17]
    assert {3, 17} <= {*shortest_part(range(20), lambda part: {3, 17} <= {*part}, trials=3)}
