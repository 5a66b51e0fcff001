"""SCRAM users through the two APIs: what is stored, what is in the response, what is refused."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from kbroker.apis import api50_describe_user_scram_credentials as describe
from kbroker.apis import api51_alter_user_scram_credentials as alter
from kbroker.common.errors import Errors
from kbroker.common.security import scram
from kbroker.metadata.metadata_store import FILE_NAME, MetadataStore
from kbroker.security.authorizer.auth_helper import AuthHelper
from kbroker.security.credentials import Deletion, ScramCredentials, Upsertion


class Context:
    """The part of ApiContext that the two use."""

    def __init__(self, store: MetadataStore) -> None:
        self.auth = AuthHelper()
        self.credentials = ScramCredentials(store)


@pytest.fixture
def ctx() -> Any:
    store = MetadataStore(None, 1)
    yield Context(store)
    store.close()


def upsertion(user: str, password: str = "secret", mechanism: int = 1, iterations: int = 4096) -> dict[str, Any]:
    how = scram.BY_NUMBER.get(mechanism, scram.SCRAM_SHA_256)
    salted = how.salted_password(password, b"salt", max(iterations, 1))
    return {
        "Name": user,
        "Mechanism": mechanism,
        "Iterations": iterations,
        "Salt": b"salt",
        "SaltedPassword": salted,
    }


def altered(ctx: Any, deletions: list[dict[str, Any]], upsertions: list[dict[str, Any]]) -> dict[str, tuple[int, Any]]:
    response = alter.handle(ctx, {"Deletions": deletions, "Upsertions": upsertions}, None)  # type: ignore[arg-type]
    return {row["User"]: (row["ErrorCode"], row["ErrorMessage"]) for row in response["Results"]}


def described(ctx: Any, names: list[str] | None) -> list[tuple[str, int, Any, list[tuple[int, int]]]]:
    users = None if names is None else [{"Name": name} for name in names]
    response = describe.handle(ctx, {"Users": users}, None)  # type: ignore[arg-type]
    assert response["ErrorCode"] == 0
    return [
        (
            r["User"],
            r["ErrorCode"],
            r["ErrorMessage"],
            [(c["Mechanism"], c["Iterations"]) for c in r["CredentialInfos"]],
        )
        for r in response["Results"]
    ]


def test_a_user_is_set_and_removed(ctx: Any) -> None:
    """By mechanism; the keys are those of the password."""
    assert altered(ctx, [], [upsertion("bob"), upsertion("alice")]) == {"bob": (0, None), "alice": (0, None)}
    assert altered(ctx, [], [upsertion("bob", mechanism=2, iterations=16384)]) == {"bob": (0, None)}
    assert described(ctx, None) == [("alice", 0, None, [(1, 4096)]), ("bob", 0, None, [(1, 4096), (2, 16384)])]
    assert described(ctx, []) == described(ctx, None)
    expected = scram.Credential.from_password(scram.SCRAM_SHA_256, "secret", b"salt", 4096)
    assert ctx.credentials.find("SCRAM-SHA-256", "bob") == expected
    assert altered(ctx, [{"Name": "bob", "Mechanism": 1}], []) == {"bob": (0, None)}
    assert described(ctx, ["bob"]) == [("bob", 0, None, [(2, 16384)])]
    assert ctx.credentials.find("SCRAM-SHA-256", "bob") is None


def test_a_name_that_is_no_utf_8(ctx: Any) -> None:
    """It is stored as Java would read it, with replacement characters, and found again by the same bytes."""
    name = b"bo\xff".decode("utf-8", "surrogateescape")
    assert altered(ctx, [], [upsertion(name)]) == {"bo\ufffd": (0, None)}
    assert described(ctx, [name]) == [("bo\ufffd", 0, None, [(1, 4096)])]
    assert altered(ctx, [{"Name": name, "Mechanism": 1}], []) == {"bo\ufffd": (0, None)}
    assert described(ctx, None) == []


def test_describe_says_what_is_wrong(ctx: Any) -> None:
    """An unknown user is 91, one named twice 92; the others are described."""
    altered(ctx, [], [upsertion("bob")])
    unknown = "Attempt to describe a user credential that does not exist: eve"
    twice = "Cannot describe SCRAM credentials for the same user twice in a single request: bob"
    assert described(ctx, ["eve", "bob"]) == [("eve", 91, unknown, []), ("bob", 0, None, [(1, 4096)])]
    assert described(ctx, ["bob", "bob"]) == [("bob", 92, twice, [])]


@pytest.mark.timeout(20)
def test_one_request_for_very_many_users_gets_a_response_soon(ctx: Any) -> None:
    """As many names as a request may have kept the interpreter, and with it everybody, busy for minutes."""
    names = [f"user-{i}" for i in range(100_000)]
    assert described(ctx, [*names, "user-7"])[7] == (
        "user-7",
        Errors.DUPLICATE_RESOURCE,
        "Cannot describe SCRAM credentials for the same user twice in a single request: user-7",
        [],
    )


def test_alter_says_what_is_wrong(ctx: Any) -> None:
    """Each user has its own response, and what is right is done."""
    results = altered(
        ctx,
        [{"Name": "gone", "Mechanism": 1}, {"Name": "", "Mechanism": 1}, {"Name": "both", "Mechanism": 9}],
        [
            upsertion("few", iterations=4095),
            upsertion("many", iterations=16385),
            upsertion("odd", mechanism=3),
            upsertion("twice"),
            upsertion("twice", mechanism=2),
            upsertion("right"),
        ],
    )
    assert results == {
        "gone": (91, "Attempt to delete a user credential that does not exist"),
        "": (93, "Username must not be empty"),
        "both": (33, "Unknown SCRAM mechanism"),
        "few": (93, "Too few iterations"),
        "many": (93, "Too many iterations"),
        "odd": (33, "Unknown SCRAM mechanism"),
        "twice": (92, "A user credential cannot be altered twice in the same request"),
        "right": (0, None),
    }
    assert [row[0] for row in described(ctx, None)] == ["right"]


def test_users_survive_a_restart_and_the_password_is_nowhere(tmp_path: Path) -> None:
    """The file holds salt and keys; neither the password nor what the client made of it."""
    store = MetadataStore(tmp_path, 1)
    change = upsertion("bob", "not to be found")
    credentials = ScramCredentials(store)
    credentials.alter([], [Upsertion("bob", 1, 4096, b"salt", change["SaltedPassword"])])
    known = credentials.find("SCRAM-SHA-256", "bob")
    store.close()
    data = (tmp_path / FILE_NAME).read_bytes()
    assert b"not to be found" not in data
    assert change["SaltedPassword"] not in data
    store = MetadataStore(tmp_path, 1)
    credentials = ScramCredentials(store)
    assert credentials.find("SCRAM-SHA-256", "bob") == known is not None
    credentials.alter([Deletion("bob", 1)], [])
    store.close()
    store = MetadataStore(tmp_path, 1)
    assert ScramCredentials(store).users() == {}
    store.close()


def test_a_failed_transaction_changes_nothing(tmp_path: Path) -> None:
    """What is not on disk does not count in memory either."""
    store = MetadataStore(tmp_path, 1)
    credentials = ScramCredentials(store)
    store.close()
    with pytest.raises(sqlite3.ProgrammingError):
        credentials.alter([], [Upsertion("bob", 1, 4096, b"salt", b"x")])
    assert credentials.users() == {}
