"""SCRAM users through the two APIs, and their storage."""

from pathlib import Path
from typing import Any

import pytest

from kbroker.apis import api50_describe_user_scram_credentials as describe
from kbroker.apis import api51_alter_user_scram_credentials as alter
from kbroker.common.errors import Errors
from kbroker.common.feature_versions import METADATA_VERSION
from kbroker.common.security import scram
from kbroker.metadata.controller import Controller
from kbroker.metadata.log.metadata_log import FOLDER_NAME
from kbroker.metadata.records.metadata_record import metadata_record
from kbroker.security.authorizer.auth_helper import AuthHelper
from kbroker.security.credentials import Deletion, ScramCredentials, Upsertion
from tests.support.fixtures import fixture_of
from tests.support.metadata import LoggedController, MemoryController, change


class Context:
    """Part of ApiContext that the two APIs use."""

    def __init__(self, controller: Controller) -> None:
        self.auth = AuthHelper()
        self.credentials = ScramCredentials(controller)


ctx = fixture_of(lambda: Context(MemoryController()))


def upsertion(user: str, password: str = "secret", mechanism: int = 1, iterations: int = 4096) -> dict[str, Any]:
    how = scram.BY_NUMBER.get(mechanism, scram.SCRAM_SHA_256)
    salted = how.salted_password(password, b"salt", max(iterations, 1))
    numbers = {"Mechanism": mechanism, "Iterations": iterations}
    return {"Name": user, **numbers, "Salt": b"salt", "SaltedPassword": salted}


def altered(ctx: Any, deletions: list[dict[str, Any]], upsertions: list[dict[str, Any]]) -> dict[str, tuple[int, Any]]:
    response = alter.handle(ctx, {"Deletions": deletions, "Upsertions": upsertions}, None)  # type: ignore[arg-type]
    return {row["User"]: (row["ErrorCode"], row["ErrorMessage"]) for row in response["Results"]}


def described(ctx: Any, names: list[str] | None) -> list[tuple[str, int, Any, list[tuple[int, int]]]]:
    users = None if names is None else [{"Name": name} for name in names]
    response = describe.handle(ctx, {"Users": users}, None)  # type: ignore[arg-type]
    assert response["ErrorCode"] == 0
    return [
        (one["User"], one["ErrorCode"], one["ErrorMessage"], [tuple(info.values()) for info in one["CredentialInfos"]])
        for one in response["Results"]
    ]


def test_a_user_is_set_and_removed(ctx: Any) -> None:
    """A user has a credential for each mechanism, with keys derived from the password."""
    assert altered(ctx, [], [upsertion("bob"), upsertion("alice")]) == {"bob": (0, None), "alice": (0, None)}
    assert altered(ctx, [], [upsertion("bob", mechanism=2, iterations=16384)]) == {"bob": (0, None)}
    assert sorted(described(ctx, None)) == [("alice", 0, "", [(1, 4096)]), ("bob", 0, "", [(1, 4096), (2, 16384)])]
    assert described(ctx, []) == described(ctx, None)
    expected = scram.Credential.from_password(scram.SCRAM_SHA_256, "secret", b"salt", 4096)
    assert ctx.credentials.find("SCRAM-SHA-256", "bob") == expected
    assert altered(ctx, [{"Name": "bob", "Mechanism": 1}], []) == {"bob": (0, None)}
    assert described(ctx, ["bob"]) == [("bob", 0, "", [(2, 16384)])]
    assert ctx.credentials.find("SCRAM-SHA-256", "bob") is None


def test_a_name_that_is_no_utf_8(ctx: Any) -> None:
    """A name with invalid bytes is stored with replacement characters, as in Java, and found by the same bytes."""
    name = b"bo\xff".decode("utf-8", "surrogateescape")
    assert altered(ctx, [], [upsertion(name)]) == {"bo\ufffd": (0, None)}
    assert described(ctx, [name]) == [("bo\ufffd", 0, "", [(1, 4096)])]
    assert altered(ctx, [{"Name": name, "Mechanism": 1}], []) == {"bo\ufffd": (0, None)}
    assert described(ctx, None) == []


@pytest.mark.timeout(20)
def test_one_request_for_very_many_users_gets_a_response_soon(ctx: Any) -> None:
    """A request with the maximum number of names does not block the interpreter for long."""
    names = [f"user-{i}" for i in range(100_000)]
    assert next(row for row in described(ctx, [*names, "user-7"]) if row[0] == "user-7") == (
        "user-7",
        Errors.DUPLICATE_RESOURCE,
        "Cannot describe SCRAM credentials for the same user twice in a single request: user-7",
        [],
    )


def test_alter_has_an_error_for_each_user(ctx: Any) -> None:
    """Each user has its own result, and the valid changes are made."""
    deletions = [{"Name": "gone", "Mechanism": 1}, {"Name": "", "Mechanism": 1}, {"Name": "both", "Mechanism": 9}]
    odd = [upsertion("few", iterations=4095), upsertion("many", iterations=16385), upsertion("odd", mechanism=3)]
    results = altered(ctx, deletions, [*odd, upsertion("twice"), upsertion("twice", mechanism=2), upsertion("right")])
    codes = {"gone": 91, "": 93, "both": 33, "few": 93, "many": 93, "odd": 33, "twice": 92, "right": 0}
    assert {user: code for user, (code, _) in results.items()} == codes
    assert [row[0] for row in described(ctx, None)] == ["right"]


def test_an_empty_salted_password_is_refused(ctx: Any) -> None:
    """Kafka responds UNKNOWN_SERVER_ERROR without a text, and sets the other users."""
    empty = {**upsertion("empty"), "SaltedPassword": b""}
    assert altered(ctx, [], [empty, upsertion("right")]) == {"empty": (-1, None), "right": (0, None)}
    assert [row[0] for row in described(ctx, None)] == ["right"]


def test_a_user_who_is_set_twice_has_that_error_before_the_one_of_an_empty_salted_password(ctx: Any) -> None:
    """Kafka refuses users that are named twice before it computes the keys of any user."""
    changes = [{**upsertion("twice"), "SaltedPassword": b""}, upsertion("twice")]
    assert altered(ctx, [], changes)["twice"][0] == Errors.DUPLICATE_RESOURCE
    assert described(ctx, None) == []


def test_users_are_in_kafkas_order(ctx: Any) -> None:
    """Results are in the order of Java's hash maps: removed users, set ones, errors; descriptions as well."""
    names = [f"user{i}" for i in range(20)] + ["alice", "bob", "carol", "dave", "zoë"]
    order = (
        "user11 user10 dave user15 user14 user13 user12 alice carol zoë user19 user18 user17 user16 user1 user2 user0 "
        "user9 user7 user8 user5 user6 user3 user4 bob"
    )
    assert " ".join(altered(ctx, [], [upsertion(name) for name in names])) == order
    assert " ".join(row[0] for row in described(ctx, None)) == order
    some = ["user3", "user4", "user5", "user6", "user7", "nope", "alice", "alice"]
    assert " ".join(row[0] for row in described(ctx, some)) == "nope alice user7 user5 user6 user3 user4"
    deletions = [{"Name": name, "Mechanism": 1} for name in ("user1", "user2", "gone", "user3", "user3")]
    twice = [upsertion("new2"), upsertion("new2", mechanism=2)]
    bad = [upsertion(""), upsertion("few", iterations=10), upsertion("x", mechanism=9)]
    upsertions = [upsertion("user2"), upsertion("new1"), *twice, *bad, upsertion("user19", mechanism=2)]
    expected = ["user1", "new1", "user19", "", "user2", "new2", "x", "few", "user3", "gone"]
    assert list(altered(ctx, deletions, upsertions)) == expected


def test_users_survive_a_restart_and_the_password_is_nowhere(tmp_path: Path) -> None:
    """The log contains the salt and the keys, but neither the password nor the salted password."""
    controller = LoggedController(tmp_path)
    change = upsertion("bob", "not to be found")
    credentials = ScramCredentials(controller)
    credentials.alter([], [Upsertion("bob", 1, 4096, b"salt", change["SaltedPassword"])])
    known = credentials.find("SCRAM-SHA-256", "bob")
    controller.close()
    data = b"".join(path.read_bytes() for path in (tmp_path / FOLDER_NAME).iterdir())
    assert known is not None
    assert known.stored_key in data
    assert b"not to be found" not in data
    assert change["SaltedPassword"] not in data
    controller = LoggedController(tmp_path)
    credentials = ScramCredentials(controller)
    assert credentials.find("SCRAM-SHA-256", "bob") == known
    credentials.alter([Deletion("bob", 1)], [])
    controller.close()
    controller = LoggedController(tmp_path)
    assert ScramCredentials(controller).users() == {}
    controller.close()


def test_a_refused_change_changes_nothing() -> None:
    """Each user of the request gets the error, except users with an error in the request."""
    controller = MemoryController()
    controller.storage.is_full = True
    ctx = Context(controller)
    results = altered(ctx, [], [upsertion("bob"), upsertion("few", iterations=1)])
    assert {user: code for user, (code, _) in results.items()} == {"bob": Errors.KAFKA_STORAGE_ERROR, "few": 93}
    assert ctx.credentials.users() == {}


def test_an_old_metadata_version_is_refused() -> None:
    """A snapshot at that level could not contain the records; code and text are Kafka's."""
    controller = MemoryController()
    change(controller, metadata_record("FeatureLevelRecord", {"Name": METADATA_VERSION, "FeatureLevel": 10}))
    ctx = Context(controller)
    refused = (Errors.UNSUPPORTED_VERSION, "The current metadata.version does not support SCRAM")
    found = altered(ctx, [{"Name": "bob", "Mechanism": 1}], [upsertion("alice")])
    assert found == {"bob": refused, "alice": refused}
    change(controller, metadata_record("FeatureLevelRecord", {"Name": METADATA_VERSION, "FeatureLevel": 11}))
    assert altered(ctx, [], [upsertion("alice")]) == {"alice": (0, None)}
