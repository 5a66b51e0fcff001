"""Replay of tables in one process, compared with the quota managers of a broker."""

from datetime import datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kbroker.common.quotas import QuotaEntity
from kbroker.spark.whatif.check import assign_epochs, replay_updates
from kbroker.spark.whatif.feed import Outcome, Replay
from kbroker.spark.whatif.quota_set import QuotaSet, Tags
from kbroker.spark.whatif.sum import ClientSums, second_rows, verdict_rows
from tests.spark.logged import LoggedBroker, logged, traffic


def entity(**names: str | None) -> QuotaEntity:
    return QuotaEntity.of({kind.replace("_", "-"): name for kind, name in names.items()})


ALL = {
    "producer_byte_rate": 2_000.0,
    "consumer_byte_rate": 3_000.0,
    "request_percentage": 3.0,
    "controller_mutation_rate": 0.2,
}
SETS: dict[str, dict[QuotaEntity, dict[str, float]]] = {
    "each client": {entity(user=None, client_id=None): ALL},
    "users": {entity(user=None): ALL, entity(user="ann"): {"producer_byte_rate": 900.0}},
    "client ids": {entity(client_id=None): ALL, entity(client_id="a"): {"request_percentage": 9.0}},
    "mixed": {
        entity(user="ann", client_id="a"): {"producer_byte_rate": 700.0, "consumer_byte_rate": 800.0},
        entity(user="bob"): {"request_percentage": 2.0, "consumer_byte_rate": 5_000.0},
        entity(client_id=None): ALL,
    },
    "one type": {entity(user="ann", client_id=None): {"consumer_byte_rate": 1_500.0}},
}


def verdicts_of(outcome: Outcome) -> list[Any]:
    rows = verdict_rows(outcome).to_pylist()
    return sorted((r["sequence"], r["quota_type"], r["user"], r["counter_client_id"], r["delay_ms"]) for r in rows)


def without(table: pa.Table, *names: str) -> pa.Table:
    return table.drop_columns(list(names))


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_quotas_in_force_give_the_brokers_delays(name: str, seed: int) -> None:
    """A replay of a broker's updates has the broker's delays to the millisecond, as has an unchanged what-if."""
    broker = logged(traffic(3_000, seed), SETS[name])
    found = replay_updates(broker.table(), QuotaSet(SETS[name])).to_pylist()
    delays = sorted((r["sequence"], r["quota_type"], r["user"], r["client_id"], r["delay_ms"]) for r in found)
    assert delays == sorted(broker.delays)
    assert len(delays) > 50
    unrefused = without(broker.table(), "verdicts")
    outcome = Replay(QuotaSet(SETS[name])).feed(unrefused)
    mutations = [d for d in broker.delays if d[1] == "ControllerMutation"]  # refused mutations leave no value to replay
    assert verdicts_of(outcome) == sorted(d for d in broker.delays if d not in mutations)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("how", ["updates", "sizes and times"])
def test_other_quotas_give_what_a_broker_with_them_would_do(name: str, how: str) -> None:
    """Under proposed quotas each request is delayed as a broker with these quotas would delay it."""
    requests = [r for r in traffic(3_000, 3) if r.api_key != 19]
    in_force = {entity(user=None): dict.fromkeys(ALL, 4_000.0)} if how == "updates" else {}
    before, after = logged(requests, in_force), logged(requests, SETS[name])
    table = before.table() if how == "updates" else without(before.table(), "updates", "verdicts")
    outcome = Replay(QuotaSet(SETS[name])).feed(table)
    assert verdicts_of(outcome) == sorted(after.delays)
    assert outcome.served_ms.tolist() == after.served
    assert before.served != after.served
    served = sum(r["served_ms"] for r in verdict_rows(outcome).to_pylist())
    assert served == sum(after.served)


def test_tables_one_after_the_other() -> None:
    """The values of the counters are kept from one table to the next."""
    requests = traffic(2_000, 4)
    while requests[1_000].time_ms <= requests[999].time_ms + 1:  # network time is charged a millisecond later
        for request in requests[1_000:]:
            request.time_ms += 1
    table = without(logged(requests, SETS["mixed"]).table(), "verdicts")
    whole = Replay(QuotaSet(SETS["mixed"])).feed(table)
    halves = Replay(QuotaSet(SETS["mixed"]))
    parts = [halves.feed(table.slice(0, 1_000)), halves.feed(table.slice(1_000))]
    assert verdicts_of(whole) == verdicts_of(parts[0]) + verdicts_of(parts[1])


def test_rows_in_any_order() -> None:
    """Times and sequences determine the order, not the position of rows."""
    table = without(logged(traffic(2_000, 6), SETS["mixed"]).table(), "verdicts")
    shuffled = table.take(pa.array([(i * 7919) % 2_000 for i in range(2_000)]))
    assert verdicts_of(Replay(QuotaSet(SETS["mixed"])).feed(shuffled)) == verdicts_of(
        Replay(QuotaSet(SETS["mixed"])).feed(table)
    )


def test_seconds_add_up() -> None:
    """Seconds by client have all requests, and the delays of the log and of the replay."""
    broker = logged(traffic(2_000, 7), SETS["each client"])
    outcome = Replay(QuotaSet(SETS["users"])).feed(broker.table())
    seconds = second_rows(outcome).to_pylist()
    assert sum(s["requests"] for s in seconds) == 2_000
    assert sum(s["logged_delay_ms"] for s in seconds) == sum(broker.served)
    assert sum(s["delay_ms"] for s in seconds) == outcome.served_ms.sum()
    assert max(s["longest_delay_ms"] for s in seconds) == outcome.served_ms.max()


def test_rows_without_requests_or_names() -> None:
    """Verdicts without a request, clients without a name, an empty table and quotas of addresses are accepted."""
    quotas = QuotaSet({**SETS["mixed"], entity(ip=None): {"connection_creation_rate": 1.0}})
    broker = LoggedBroker()
    table = broker.table()
    assert verdict_rows(Replay(quotas).feed(table)).num_rows == 0
    assert second_rows(Replay(quotas).feed(table)).num_rows == 0
    assert replay_updates(table, quotas).num_rows == 0
    rows = logged(traffic(10, 1), {}).rows
    rows[3] = dict.fromkeys(rows[3]) | {"time": rows[3]["time"], "sequence": 3}
    rows[4] |= {"principal": None, "client_id": None}
    outcome = Replay(quotas).feed(pa.Table.from_pylist(rows, table.schema))
    assert sum(s["requests"] for s in second_rows(outcome).to_pylist()) == 9


@pytest.mark.parametrize(
    "odd",
    [
        {"time": datetime(9999, 1, 2, tzinfo=timezone.utc)},
        {"time": datetime(1970, 1, 1, tzinfo=timezone.utc), "send_time_us": 5_000_000},
        {"send_time_us": 10**18},
        {"response_queue_time_us": -(10**18)},
    ],
    ids=["far in the future", "before 1970", "sent for ages", "a negative time"],
)
def test_a_time_that_no_broker_writes(odd: dict[str, Any]) -> None:
    """A record with an impossible time counts for its own client, and the sums of all others are unaffected."""
    quotas, broker = QuotaSet(SETS["each client"]), logged(traffic(200, 7), SETS["each client"])
    rows = [*broker.rows, {**broker.rows[-1], "principal": "User:odd", "updates": [], **odd}]
    found = []
    for table in (broker.table(), pa.Table.from_pylist(rows, broker.table().schema)):
        sums = ClientSums(60)
        sums.add(Replay(quotas).feed(table))
        found.append([row for part in sums.end() for row in part.to_pylist()])
    assert [row for row in found[1] if row["principal"] != "User:odd"] == found[0]
    assert sum(row["requests"] for row in found[1]) == 201


@pytest.mark.parametrize("quota_type", [None, "Later"])
def test_quota_types_of_another_version_are_not_checked(quota_type: str | None) -> None:
    """The values and the verdicts of all other types are checked."""
    quotas, broker = QuotaSet(SETS["each client"]), logged(traffic(1_000, 24), SETS["each client"])
    rows = broker.rows
    for row in rows:
        for name in ("updates", "verdicts"):
            row[name] = [*row[name], *({**one, "quota_type": quota_type} for one in row[name])]
    found = replay_updates(broker.table(), quotas).to_pylist()
    assert delays_of(found) == sorted(broker.delays)
    assert all(r["delay_ms"] == r["logged_ms"] and not r["unknown"] for r in found)


def test_whose_counter_it_is() -> None:
    """The eight levels are the broker's, and a counter's name gives its limit."""
    quotas = QuotaSet(SETS["mixed"])
    judge = quotas.judge("Produce", "User:ann", "a")
    assert judge == (Tags("Produce", "ann", "a"), 700.0, 1)
    assert quotas.judge("Request", "User:bob", "a") == (Tags("Request", "bob", ""), 2.0, 3)
    assert quotas.judge("Request", "User:eve", "x") == (Tags("Request", "", "x"), 3.0, 8)
    assert quotas.judge("Request", "User:eve", None).limit is None
    assert quotas.limit_of(Tags("Request", "bob", "")) == 2.0
    assert quotas.limit_of(Tags("Request", "", "x")) == 3.0
    assert quotas.limit_of(Tags("Request", "", "")) is None


def delays_of(found: list[dict[str, Any]]) -> list[Any]:
    return sorted((r["sequence"], r["quota_type"], r["user"], r["client_id"], r["delay_ms"]) for r in found)


@pytest.mark.parametrize("name", ["each client", "mixed"])
def test_a_counter_that_was_forgotten_begins_anew(name: str) -> None:
    """After an hour without a value, and after a restart, numbers start at 1 and belong to other, cold counters."""
    requests, later, last = traffic(1_000, 21), traffic(1_000, 22), traffic(1_000, 23)
    hours = 3_600_000
    for request in later:
        request.time_ms += 3 * hours
    for request in last:
        request.time_ms += 3 * hours + later[-1].time_ms - requests[0].time_ms + 10  # a restart within the hour
    broker = logged(requests, SETS[name])
    broker.forget(later[0].time_ms - hours // 2)
    for request in later:
        broker.judge(request)
    broker.send(later[-1].time_ms + 1)
    restarted = logged(last, SETS[name])
    table = pa.concat_tables([restarted.table(), broker.table()])
    found = replay_updates(table, QuotaSet(SETS[name])).to_pylist()
    assert delays_of(found) == sorted([*broker.delays, *restarted.delays])
    assert all(r["delay_ms"] == r["logged_ms"] and not r["unknown"] for r in found)


def test_brokers_have_counters_of_their_own() -> None:
    """The logs of two brokers may be in one table."""
    parts = []
    for number in (1, 2):
        table = logged(traffic(1_000, 30 + number), SETS["users"]).table()
        at = table.schema.get_field_index("broker")
        parts.append(table.set_column(at, table.schema.field(at), pa.array([number] * len(table), pa.int32())))
    found = replay_updates(pa.concat_tables(parts), QuotaSet(SETS["users"])).to_pylist()
    assert {r["broker"] for r in found} == {1, 2}
    assert all(r["delay_ms"] == r["logged_ms"] for r in found)


def test_verdicts_after_values_that_are_missing_are_unknown() -> None:
    """The number of missing values is reported, their counters' verdicts are unknown, and the others are equal."""
    broker = logged(traffic(2_000, 24), SETS["each client"])
    whole = broker.table()
    dropped = range(900, 905)
    kept = pa.concat_tables([whole.slice(0, 900), whole.slice(905)])
    found = replay_updates(kept, QuotaSet(SETS["each client"])).to_pylist()
    lost: dict[tuple[str, str, str], int] = {}
    for row in dropped:
        for update in broker.rows[row]["updates"]:
            who = (update["quota_type"], update["user"], update["client_id"])
            lost[who] = lost.get(who, 0) + 1
    assert {(r["quota_type"], r["user"], r["client_id"]): r["missing"] for r in found if r["missing"]} == lost
    verdicts = [r for r in found if not r["missing"]]
    assert all(r["delay_ms"] == r["logged_ms"] for r in verdicts if not r["unknown"])
    unknown = {(r["sequence"], r["quota_type"], r["user"], r["client_id"]) for r in verdicts if r["unknown"]}
    assert {who[1:] for who in unknown} <= set(lost)
    assert min(who[0] for who in unknown) >= 900
    logged_late = {d[:4] for d in broker.delays if d[1:4] in lost and d[0] > 904}
    assert logged_late <= unknown
    assert len(verdicts) - len(unknown) > 50


def test_a_refusal_by_a_counter_that_the_log_does_not_know_is_unknown() -> None:
    """The values were in missing records; verdicts without sequences are matched by their times."""
    broker = logged(traffic(3_000, 25), SETS["each client"])
    refusals = [row for row, kind, *_ in broker.delays if kind == "ControllerMutation"]
    alone = broker.table().take(pa.array([refusals[0]]))
    rows = alone.to_pylist()
    rows[0]["updates"] = []
    (refusal, lack) = replay_updates(
        pa.Table.from_pylist(rows, alone.schema), QuotaSet(SETS["each client"])
    ).to_pylist()
    assert (refusal["refused"], refusal["unknown"], refusal["missing"]) == (True, True, 0)
    assert lack["missing"] >= 1
    for row in broker.rows:
        for verdict in row["verdicts"]:
            verdict["sequence"] = verdict["time_ms"] = None
    found = replay_updates(broker.table(), QuotaSet(SETS["each client"])).to_pylist()
    assert delays_of(found) == sorted(broker.delays)


@pytest.mark.parametrize(
    ("values", "lives"),
    [
        ([(1, 0), (2, 0), (3, 1)], [0, 0, 0]),
        ([(2, 1), (1, 2), (3, 3)], [0, 0, 0]),  # a clock that was read before the lock was taken
        ([(1, 0), (2, 1), (1, 5), (2, 6), (3, 7)], [0, 0, 1, 1, 1]),
        ([(1, 0), (2, 1), (1, 5), (3, 6), (2, 7), (3, 8)], [0, 0, 1, 0, 1, 1]),  # a response that was sent late
        ([(1, 0), (2, 1), (1, 5), (2, 5), (1, 9)], [0, 0, 1, 1, 2]),
        ([(4, 0), (5, 1), (4, 5), (5, 6), (7, 7)], [0, 0, 1, 1, 1]),  # neither starts at 1, and one has a gap
    ],
)
def test_lives_of_a_counter(values: list[tuple[int, int]], lives: list[int]) -> None:
    """Epochs follow number and time, and a second counter is not affected."""
    mixed = [(0, *value) for value in values] + [(1, number, number) for number in range(1, 9)]
    order = sorted(range(len(mixed)), key=lambda i: (mixed[i][1], mixed[i][2]))
    counter, sequence, times = (np.array([mixed[i][part] for i in order]) for part in range(3))
    found = assign_epochs(counter, sequence, times)
    expected = [*lives, *[0] * 8]
    assert found.tolist() == [expected[i] for i in order]
