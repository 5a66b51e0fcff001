"""Random requests for the quotas of clients, for ACLs and for SCRAM credentials."""

from __future__ import annotations

import math
from typing import Any

from tests.support.histories.draw import Draw
from tests.support.histories.steps import Body, Reference, Step, named

ADDRESSES = ("10.9.8.1", "10.9.8.2")
USER, CLIENT, ADDRESS = "user", "client-id", "ip"
KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
CONNECTIONS = "connection_creation_rate"
EXACT, DEFAULT, ANY = 0, 1, 2
BIG = 1_000_000_000.0  # no client of the tests reaches such a quota
RATES = (BIG, BIG + 1, 0.0, -1.0, 1e9 + 0.5, 1e300, math.inf, 1e-9)
# Quotas that histories have in common
SHARED: tuple[list[Body], ...] = (
    *([{"EntityType": ADDRESS, "EntityName": each}] for each in (*ADDRESSES, None)),
    [{"EntityType": USER, "EntityName": None}], [{"EntityType": CLIENT, "EntityName": None}],
    [{"EntityType": USER, "EntityName": None}, {"EntityType": CLIENT, "EntityName": None}],
)  # fmt: skip


# ---- quotas


def begin() -> Step:
    """Return the step that removes the quotas that histories have in common."""
    entries = []
    for entity in SHARED:
        keys = (CONNECTIONS,) if entity[0]["EntityType"] == ADDRESS else KEYS
        entries.append({"Entity": entity, "Ops": [{"Key": key, "Value": 0.0, "Remove": True} for key in keys]})
    return Step("AlterClientQuotas", 1, {"Entries": entries}, settled=_all_quotas())


def _all_quotas() -> Step:
    return Step("DescribeClientQuotas", 1, {"Components": [], "Strict": False})


def _entity(draw: Draw) -> list[Body]:
    users, clients = [named("u"), named("v"), None, ""], [named("c"), named("d"), None, ""]
    user: Body = {"EntityType": USER, "EntityName": draw.one(users[:3] if draw.happens(0.9) else users)}
    client: Body = {"EntityType": CLIENT, "EntityName": draw.one(clients[:3] if draw.happens(0.9) else clients)}
    address: Body = {"EntityType": ADDRESS, "EntityName": draw.one([*ADDRESSES, None, "nowhere at all", "", "10.9.8"])}
    odd: list[list[Body]] = [
        [], [address, user], [user, user], [user, {**user, "EntityName": named("w")}],
        [{"EntityType": "planet", "EntityName": "x"}], [{"EntityType": "", "EntityName": None}],
        [{"EntityType": "User", "EntityName": named("u")}], [user, {"EntityType": "planet", "EntityName": "x"}],
    ]  # fmt: skip
    usual = [[user], [client], [user, client], [client, user], [address]]
    return draw.one(odd) if draw.happens(0.12) else draw.one(usual)


def alter_quotas(draw: Draw) -> Step:
    entries: list[Body] = []
    for _ in draw.rows(0, 1, 1, 1, 2, 3):
        entity = _entity(draw)
        known = (
            [CONNECTIONS]
            if entity and entity[0]["EntityType"] == ADDRESS and draw.happens(0.85)
            else [*KEYS, CONNECTIONS]
        )
        ops = []
        for _ in draw.rows(0, 1, 1, 2, 3):
            key = draw.one([*known * 3, "no_such_rate", ""])
            rate = BIG if draw.happens(0.7) else draw.one(RATES)
            ops.append({"Key": key, "Value": rate, "Remove": draw.happens(0.3)})
        if entity not in [each["Entity"] for each in entries]:  # a deliberate difference (docs/quotas.md)
            entries.append({"Entity": entity, "Ops": ops})
    body = {"Entries": entries, "ValidateOnly": draw.happens(0.2)}
    return Step("AlterClientQuotas", draw.random.randint(0, 1), body, settled=_all_quotas())


def describe_quotas(draw: Draw) -> Step:
    components = []
    for _ in draw.rows(0, 1, 1, 2, 2, 3):
        kind = (
            draw.one([USER, USER, CLIENT, CLIENT, ADDRESS, "planet", ""])
            if draw.happens(0.5)
            else draw.one([USER, CLIENT])
        )
        how = (
            draw.one([EXACT, EXACT, DEFAULT, ANY, ANY, 3, -1]) if draw.happens(0.5) else draw.one([EXACT, DEFAULT, ANY])
        )
        match: Any = draw.one(ADDRESSES) if kind == ADDRESS else draw.one([named(each) for each in "uvcd"])
        if how != EXACT or draw.happens(0.1):
            match = None if draw.happens(0.9) else match
        components.append({"EntityType": kind, "MatchType": how, "Match": match})
    body = {"Components": components, "Strict": draw.happens(0.5)}
    return Step("DescribeClientQuotas", draw.random.randint(0, 1), body)


# ---- ACLs

ANY_FILTER = {"ResourceTypeFilter": 1, "ResourceNameFilter": None, "PatternTypeFilter": 1, "HostFilter": None}
TYPES, PATTERNS = (1, 2, 2, 3, 4, 5, 6, 7), (1, 2, 3, 3, 4, 4)


def _principal(label: str) -> Reference:
    return Reference(f"User:{label}", lambda known: f"User:{known.name(label)}")


def _all_acls() -> Step:
    body = {**ANY_FILTER, "PrincipalFilter": None, "Operation": 1, "PermissionType": 1}
    return Step("DescribeAcls", 3, body)


def _resource(draw: Draw) -> Any:
    return draw.one([named("r"), named("r"), named(""), named("rest"), "*", "kafka-cluster", ""])


def create_acls(draw: Draw) -> Step:
    rows = []
    for _ in draw.rows(0, 1, 1, 2, 3):
        kind = draw.one([2, 2, 3, 5, 6, 7, 4])
        name = "kafka-cluster" if kind == 4 and draw.happens(0.7) else _resource(draw)
        principals: list[Any] = [_principal("p"), _principal("p"), _principal("q")]
        if draw.happens(0.1):
            principals = [named("no colon"), ""]
        rows.append(
            {
                "ResourceType": kind, "ResourceName": name, "ResourcePatternType": draw.one([3, 3, 3, 4, 4]),
                "Principal": draw.one(principals), "Host": draw.one(["*", "*", "10.0.0.1", "", "10.0.0.1:9"]),
                "Operation": draw.one([2, 3, 3, 4, 5, 8, 10, 12, 13, 14, 15]),
                "PermissionType": draw.one([3, 3, 3, 2, 2]),
            }
        )  # fmt: skip
    return Step("CreateAcls", draw.random.randint(1, 3), {"Creations": rows}, settled=_all_acls())


def _filter(draw: Draw, *, is_own: bool) -> Body:
    """Return a filter of ACLs. Args: ``is_own``: it matches only ACLs of this history."""
    principals: list[Any] = [_principal("p"), _principal("q"), _principal("p"), named("no colon")]
    return {
        "ResourceTypeFilter": draw.one(TYPES),
        "ResourceNameFilter": draw.one([None, None, _resource(draw)]),
        "PatternTypeFilter": draw.one(PATTERNS),
        "PrincipalFilter": draw.one(principals if is_own else [*principals, None, None, ""]),
        "HostFilter": draw.one([None, None, "*", "10.0.0.1", ""]),
        "Operation": draw.one([1, 1, 1, 3, 2]),
        "PermissionType": draw.one([1, 1, 3, 2]),
    }


def describe_acls(draw: Draw) -> Step:
    return Step("DescribeAcls", draw.random.randint(1, 3), _filter(draw, is_own=False))


def delete_acls(draw: Draw) -> Step:
    rows = [_filter(draw, is_own=True) for _ in draw.rows(0, 1, 1, 2)]
    return Step("DeleteAcls", draw.random.randint(1, 3), {"Filters": rows}, settled=_all_acls())


# ---- SCRAM credentials


def _user(draw: Draw) -> Any:
    return draw.one([named("u"), named("v"), named("u")]) if draw.happens(0.92) else ""


def alter_scram(draw: Draw) -> Step:
    upserted = [
        {
            "Name": _user(draw), "Mechanism": draw.one([1, 1, 1, 2, 2, 0, 3, -1]),
            "Iterations": draw.one([4096, 4096, 4096, 8192, 8192, 16384, 16385, 4095, 0, -1]),
            "Salt": draw.one([b"salt", b"salt", b""]),
            "SaltedPassword": draw.one([bytes(32), bytes(32), bytes(64), b""]),
        }
        for _ in draw.rows(0, 1, 1, 2)
    ]  # fmt: skip
    deleted = [{"Name": _user(draw), "Mechanism": draw.one([1, 1, 2, 0, 3])} for _ in draw.rows(0, 0, 1, 1, 2)]
    body = {"Deletions": deleted, "Upsertions": upserted}
    return Step("AlterUserScramCredentials", 0, body, settled=_all_scram())


def _all_scram() -> Step:
    return Step("DescribeUserScramCredentials", 0, {"Users": None})


def describe_scram(draw: Draw) -> Step:
    users = [{"Name": _user(draw)} for _ in draw.rows(0, 1, 1, 2, 3)]
    return Step("DescribeUserScramCredentials", 0, {"Users": users if draw.happens(0.8) else None})
