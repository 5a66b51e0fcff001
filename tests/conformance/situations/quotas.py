"""Quotas: set, described, and enforced."""

import math
from typing import Any

from tests.conformance.batches import batch
from tests.conformance.bodies import fetch, fill, produce
from tests.conformance.codec import Body
from tests.conformance.run import situation
from tests.conformance.talk import Talk

VERSIONS = "0-1"
EXACT, DEFAULT, ANY = 0, 1, 2
PRODUCED, CONSUMED, REQUESTS = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
CONNECTIONS, MUTATIONS = "connection_creation_rate", "controller_mutation_rate"
Match = tuple[str, int, str | None]


def entity(**parts: str | None) -> list[Body]:
    return [{"EntityType": kind.replace("_", "-"), "EntityName": name} for kind, name in parts.items()]


def alter(parts: list[Body], *rates: tuple[str, float | None], only_validate: bool = False) -> Body:
    """Return an AlterClientQuotas request; None removes a rate."""
    rows = [{"Key": key, "Value": 0.0 if rate is None else rate, "Remove": rate is None} for key, rate in rates]
    return {"Entries": [{"Entity": parts, "Ops": rows}], "ValidateOnly": only_validate}


def describe(*matches: Match, strict: bool = False) -> Body:
    rows = [{"EntityType": kind, "MatchType": how, "Match": name} for kind, how, name in matches]
    return {"Components": rows, "Strict": strict}


def goes_at_end(talk: Talk, parts: list[Body], *keys: str) -> None:
    talk.at_end(lambda: talk.quietly("AlterClientQuotas", 0, alter(parts, *((key, None) for key in keys))))


def await_count(talk: Talk, count: int, *matches: Match) -> None:
    """Wait until ``count`` entities match."""
    body = describe(*matches, strict=True)
    talk.until("the quota", lambda: len(talk.quietly("DescribeClientQuotas", 0, body)["Entries"] or []) == count)


@situation("AlterClientQuotas", VERSIONS)
def life_of_a_quota(talk: Talk) -> None:
    """Set, change, remove, and remove again a quota, and describe it each time."""
    name = talk.name("u")
    user, match = entity(user=name), ("user", EXACT, name)
    goes_at_end(talk, user, PRODUCED, CONSUMED)
    talk.ask(alter(user, (PRODUCED, 1024.0), (CONSUMED, 2048.0)), "set")
    await_count(talk, 1, match)
    talk.also("DescribeClientQuotas", talk.version, describe(match), "set")
    talk.ask(alter(user, (PRODUCED, 512.0), (CONSUMED, None)), "changed")

    def rates() -> int:
        return len(talk.quietly("DescribeClientQuotas", 0, describe(match))["Entries"][0]["Values"])

    talk.until("the change", lambda: rates() == 1)
    talk.also("DescribeClientQuotas", talk.version, describe(match), "changed")
    talk.ask(alter(user, (PRODUCED, None)), "removed")
    await_count(talk, 0, match)
    talk.also("DescribeClientQuotas", talk.version, describe(match), "removed")
    talk.ask(alter(user, (PRODUCED, None)), "removed again")


@situation("AlterClientQuotas", VERSIONS, alone=True)
def kinds_of_entities(talk: Talk) -> None:
    """Set quotas of all eight kinds of users and clients, and describe them with every kind of match."""
    user, client = talk.name("u"), talk.name("c")
    pairs = [entity(user=u, client_id=c) for u in (user, None) for c in (client, None)]
    singles = [entity(user=user), entity(user=None), entity(client_id=client), entity(client_id=None)]
    for number, parts in enumerate(pairs + singles):
        goes_at_end(talk, parts, REQUESTS)
        talk.ask(alter(parts, (REQUESTS, 10_000.0 + number)), f"entity {number}")
    await_count(talk, 1, ("client-id", DEFAULT, None))
    own = {"Entries": lambda row: any(10_000 <= value["Value"] < 10_008 for value in row["Values"])}
    matches: dict[str, list[Match]] = {
        "user": [("user", EXACT, user)],
        "default user": [("user", DEFAULT, None)],
        "any user": [("user", ANY, None)],
        "client": [("client-id", EXACT, client)],
        "pair": [("user", EXACT, user), ("client-id", EXACT, client)],
        "any pair": [("user", ANY, None), ("client-id", ANY, None)],
        "all": [],
    }
    for note, rows in matches.items():
        for strict in (False, True):
            body = describe(*rows, strict=strict)
            talk.also("DescribeClientQuotas", talk.version, body, f"{note}{', strict' * strict}", only=own)


@situation("AlterClientQuotas", VERSIONS, alone=True)
def addresses(talk: Talk) -> None:
    """Set quotas of IP addresses, which have only one kind of quota."""
    address, match = entity(ip="10.9.8.7"), ("ip", EXACT, "10.9.8.7")
    goes_at_end(talk, address, CONNECTIONS)
    talk.ask(alter(address, (CONNECTIONS, 100.0)), "set")
    await_count(talk, 1, match)
    talk.also("DescribeClientQuotas", talk.version, describe(match))
    rows: dict[str, tuple[list[Body], str, float]] = {
        "fraction": (address, CONNECTIONS, 1.5),
        "bytes of an address": (address, PRODUCED, 1.0),
        "connections of a user": (entity(user=talk.name("u")), CONNECTIONS, 1.0),
        "with a user": (entity(ip="10.9.8.7", user=talk.name("u")), CONNECTIONS, 1.0),
        "with a client": (entity(ip="10.9.8.7", client_id="c"), CONNECTIONS, 1.0),
        "no address": (entity(ip="nowhere at all"), CONNECTIONS, 1.0),
        "empty": (entity(ip=""), CONNECTIONS, 1.0),
        "in brackets": (entity(ip="[::1]"), CONNECTIONS, 1.0),
        "IPv4 in brackets": (entity(ip="[10.9.8.7]"), CONNECTIONS, 1.0),
    }
    for note, (parts, key, rate) in rows.items():
        talk.ask(alter(parts, (key, rate), only_validate=True), note)


BAD_RATES = (
    *((PRODUCED, rate) for rate in (0.0, 0.0001, -1.0, 1.5, math.inf, 1e300, 10.000_000_1)),
    *((REQUESTS, 0.5), (REQUESTS, -3.0), (MUTATIONS, 0.25), ("no_such_rate", 1.0), ("", 1.0), ("no_such_rate", None)),
)


@situation("AlterClientQuotas", VERSIONS)
def odd_rates(talk: Talk) -> None:
    """Set rates of zero, below zero, fractions and infinity, and unknown keys."""
    user = entity(user=talk.name("u"))
    for key, rate in BAD_RATES:
        talk.ask(alter(user, (key, rate), only_validate=True), f"{key}={rate}")


@situation("AlterClientQuotas", VERSIONS)
def rate_that_is_no_number(talk: Talk) -> None:
    """Set a rate of NaN."""
    talk.ask(alter(entity(user=talk.name("u")), (PRODUCED, math.nan), only_validate=True))


@situation("AlterClientQuotas", VERSIONS)
def odd_entities(talk: Talk) -> None:
    """Set quotas of no, unknown, duplicate and nameless entities, and no or duplicate rates."""
    user, rate = entity(user=talk.name("u")), (PRODUCED, 100.0)
    goes_at_end(talk, user, PRODUCED)
    talk.ask(alter([], rate), "none")
    talk.ask(alter(entity(group="g"), rate, only_validate=True), "another type")
    talk.ask(alter(entity(client_id="c") + entity(client_id="d"), rate, only_validate=True), "type twice")
    talk.ask(alter(entity(user=""), rate), "no name")
    talk.ask(alter(user), "no rates")
    talk.ask(alter(user, rate, (PRODUCED, 200.0), only_validate=True), "rate twice")
    body = alter(user, rate, only_validate=True)
    talk.ask({**body, "Entries": body["Entries"] * 2}, "entity twice")
    talk.ask({"Entries": []}, "nothing")


@situation("AlterClientQuotas", VERSIONS)
def good_beside_bad(talk: Talk) -> None:
    """Validate only; then set a good and a bad entry, of which only the good one is applied."""
    good, bad = talk.name("good"), talk.name("bad")
    for name in (good, bad):
        goes_at_end(talk, entity(user=name), PRODUCED, CONSUMED)
    talk.ask(alter(entity(user=good), (PRODUCED, 5.0), only_validate=True), "validated")
    talk.also("DescribeClientQuotas", talk.version, describe(("user", EXACT, good)), "good")
    entries = alter(entity(user=good), (PRODUCED, 5.0))["Entries"]
    entries += alter(entity(user=bad), (PRODUCED, 5.0), (CONSUMED, -5.0))["Entries"]
    talk.ask({"Entries": entries}, "both")
    await_count(talk, 1, ("user", EXACT, good))
    talk.also("DescribeClientQuotas", talk.version, describe(("user", EXACT, bad)), "bad")


@situation("DescribeClientQuotas", VERSIONS)
def odd_questions(talk: Talk) -> None:
    """Describe unknown types and matches, and combinations that are not allowed."""
    rows: dict[str, list[Match]] = {
        "unknown type": [("group", EXACT, "g")],
        "empty type": [("", EXACT, "a")],
        "unknown match": [("user", 9, "u")],
        "match below zero": [("user", -1, None)],
        "type twice": [("user", EXACT, "a"), ("user", EXACT, "b")],
        "address and user": [("ip", EXACT, "10.0.0.1"), ("user", EXACT, "a")],
        "exact without a name": [("user", EXACT, None)],
        "exact, no name": [("user", EXACT, "")],
        "default with a name": [("user", DEFAULT, "a")],
        "any with a name": [("user", ANY, "a")],
    }
    for note, matches in rows.items():
        talk.ask(describe(*matches), note, without=("Entries",))


# ---- enforced


def limited(talk: Talk, key: str, rate: float) -> None:
    """Give both connections a client id with a quota."""
    client = talk.name("client")
    for connection in ("main", "second"):
        talk.call(connection, client)
    parts = entity(client_id=client)
    goes_at_end(talk, parts, key)
    talk.quietly("AlterClientQuotas", 0, alter(parts, (key, rate)))
    await_count(talk, 1, ("client-id", EXACT, client))


def delayed(talk: Talk, note: str, response: dict[str, Any], least_ms: int, most_ms: int) -> None:
    """Record whether the throttle time is between two bounds, or the throttle time itself if it is not."""
    found_ms = response.get("ThrottleTimeMs", -1)
    talk.observe(f"delay, {note}", True if least_ms <= found_ms <= most_ms else found_ms)


@situation("Produce", "3,7,9,13", alone=True)
def produce_is_delayed(talk: Talk) -> None:
    """Append 30,000 bytes at 1,000 a second, which throttles for some 20 s; two connections share the rate."""
    topic = talk.topic()
    limited(talk, PRODUCED, 1000.0)
    small, large = (batch("v" * size, time_ms=talk.at()) for size in (1, 30_000))
    delayed(talk, "small", talk.ask(produce((topic, 0, small)), "small"), 0, 0)
    delayed(talk, "large", talk.ask(produce((topic, 0, large)), "large", on="second"), 19_000, 24_000)


@situation("Fetch", "4,12,17", alone=True)
def fetch_is_delayed(talk: Talk) -> None:
    """Fetch above the rate, for which the response is empty and has a throttle time."""
    topic = talk.topic()
    fill(talk, topic, value_bytes=9400)
    limited(talk, CONSUMED, 1000.0)
    delayed(talk, "first", talk.ask(fetch((topic, 0, 0)), "first"), 0, 0)
    delayed(talk, "second", talk.ask(fetch((topic, 0, 0)), "second", on="second"), 7500, 11_000)


@situation("CreateTopics", "5,6,7", alone=True)
def mutations_are_delayed(talk: Talk) -> None:
    """Create topics above a mutation quota: a large request succeeds, the next is refused or throttled."""
    names = [talk.name(f"t{number}") for number in range(3)]
    talk.will_make(*names)
    limited(talk, MUTATIONS, 1.0)

    def create(*rows: tuple[str, int]) -> Body:
        topics = [{"Name": name, "NumPartitions": count, "ReplicationFactor": 1} for name, count in rows]
        return {"Topics": topics, "timeoutMs": 5000}

    first = talk.ask(create((names[0], 15)), "15 partitions")
    delayed(talk, "first", first, *((0, 0) if talk.version >= 6 else (2000, 5000)))
    second = talk.ask(create((names[1], 1), (names[2], 1)), "two more", on="second")
    delayed(talk, "second", second, 2000, 7000)


@situation("ApiVersions", "0-4", alone=True)
def requests_are_delayed(talk: Talk) -> None:
    """Send requests with a request quota near zero, which throttles for at most one window."""
    limited(talk, REQUESTS, 0.0001)
    talk.also("Metadata", 4, {"Topics": []})
    only = {"ApiKeys": lambda row: row["ApiKey"] == 18}
    response = talk.ask({"ClientSoftwareName": "a", "ClientSoftwareVersion": "1"}, on="second", only=only)
    if talk.version >= 1:
        delayed(talk, "one window", response, 1, 1000)
