"""Sessions and the secret of forms, on the virtual clock."""

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.console.sign_in import MAX_SESSIONS, SESSION_MS, FormSecret, Sessions, cookie_name, cookie_of


def test_a_session_ends() -> None:
    clock = VirtualClock(1_700_000_000_000)
    sessions = Sessions(clock)
    one, other = sessions.begin(), sessions.begin()
    assert sessions.principal(one) == ""
    assert sessions.principal(one[:-1]) is None
    assert sessions.principal("") is None
    sessions.end(other)
    assert sessions.principal(other) is None
    clock.advance_ms(SESSION_MS - 1)
    assert sessions.principal(one) == ""
    clock.advance_ms(1)
    assert sessions.principal(one) is None


def test_a_principal_ends_only_its_own_sessions() -> None:
    """A thousand sessions of one user end only that user's sessions."""
    sessions = Sessions(VirtualClock())
    operator, bob = sessions.begin(), sessions.begin("User:bob")
    first, *rest = [sessions.begin("User:alice") for _ in range(MAX_SESSIONS + 1)]
    assert sessions.principal(first) is None
    assert all(sessions.principal(one) == "User:alice" for one in rest)
    assert (sessions.principal(operator), sessions.principal(bob)) == ("", "User:bob")


def test_the_secret_of_a_form_is_of_one_session() -> None:
    secret = FormSecret()
    assert secret.is_right("session", secret.of("session"))
    assert not secret.is_right("other", secret.of("session"))
    assert not secret.is_right("session", FormSecret().of("session"))
    assert not secret.is_right("session", "")
    assert not secret.is_right("session", "\udcff")


def test_the_secret_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    secret, compared = FormSecret(), []

    def digest_is(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return one == other

    right = secret.of("session")
    monkeypatch.setattr("hmac.compare_digest", digest_is)
    assert [secret.is_right("session", value) for value in (right, right[:-1], "")] == [True, False, False]
    assert compared == [right.encode(), right[:-1].encode(), b""]


def test_the_cookie_among_others() -> None:
    assert cookie_of({"cookie": "a=b; kbroker_console=xyz; kbroker_console_2=no"}) == "xyz"
    assert cookie_of({"cookie": "kbroker_console"}) == ""
    assert cookie_of({}) == ""


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1:9400", "kbroker_console_9400"),
        ("[::1]:9401", "kbroker_console_9401"),
        ("broker.example", "kbroker_console"),
        ("[::1]", "kbroker_console"),
        ("x:9400;", "kbroker_console"),
    ],
)
def test_consoles_of_one_machine_have_cookies_of_their_own(host: str, name: str) -> None:
    """Cookies have the port in their name, since a browser sends a host's cookies to all of its ports."""
    assert cookie_name({"host": host}) == name
    assert cookie_of({"host": host, "cookie": f"kbroker_console_1=other; {name}=own"}) == "own"
