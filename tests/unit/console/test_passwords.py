"""Sign-in as a SCRAM user: each accepted mechanism, and the work for unknown users."""

import pytest

from kbroker.common.security import scram
from kbroker.console.passwords import Passwords

SHA_256, SHA_512 = scram.SCRAM_SHA_256, scram.SCRAM_SHA_512
Stored = dict[tuple[str, str], scram.Credential]


def stored(*users: tuple[str, scram.Mechanism, str, int]) -> Stored:
    return {
        (user, mechanism.name): scram.Credential.from_password(mechanism, password, b"salt", iterations)
        for user, mechanism, password, iterations in users
    }


def passwords(found: Stored, *mechanisms: scram.Mechanism) -> Passwords:
    def users() -> dict[str, dict[str, int]]:
        used: dict[str, dict[str, int]] = {}
        for (user, mechanism), credential in found.items():
            used.setdefault(user, {})[mechanism] = credential.iterations
        return used

    names = [one.name for one in mechanisms]
    return Passwords(lambda mechanism, user: found.get((user, mechanism)), users, names)


def test_each_password_of_an_accepted_mechanism() -> None:
    """The passwords of all mechanisms that a listener accepts are valid, and no others."""
    found = stored(("two", SHA_256, "one", 4096), ("two", SHA_512, "other", 4096))
    both, one = passwords(found, SHA_256, SHA_512), passwords(found, SHA_512)
    assert [both.sign_in("two", text) is not None for text in ("one", "other", "wrong")] == [True, True, False]
    assert [one.sign_in("two", text) is not None for text in ("one", "other")] == [False, True]
    signed_in = both.sign_in("two", "other")
    assert signed_in is not None
    del found["two", SHA_256.name]
    assert signed_in.is_valid()
    del found["two", SHA_512.name]
    assert not signed_in.is_valid()


def test_unknown_users_take_the_time_of_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown user costs the iterations of a known user, so that the time of a refusal reveals no user."""
    work: list[tuple[str, int]] = []

    def salted_password(self: scram.Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
        work.append((self.name, iterations))
        return b"x"

    found = stored(("a", SHA_256, "x", 4096), ("b", SHA_512, "x", 5000), ("c", SHA_256, "x", 4096))
    found |= stored(("d", SHA_256, "x", 4096), ("d", SHA_512, "x", 4096))
    check = passwords(found, SHA_256, SHA_512)
    monkeypatch.setattr(scram.Mechanism, "salted_password", salted_password)

    def work_of(user: str) -> tuple[tuple[str, int], ...]:
        work.clear()
        assert check.sign_in(user, "wrong") is None
        return tuple(work)

    known = {work_of(user) for user in "abcd"}
    assert len(known) == 3
    names = [f"unknown {number}" for number in range(100)]
    unknown = [work_of(name) for name in names]
    assert set(unknown) == known
    assert [work_of(name) for name in names] == unknown


def test_a_cluster_without_users() -> None:
    assert passwords({}, SHA_512).sign_in("a", "b") is None
