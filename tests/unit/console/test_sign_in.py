"""Sessions, guesses and the secret of forms, on the virtual clock."""

from kbroker._core.clock import VirtualClock
from kbroker.console.sign_in import (
    ALL_GUESSES,
    GUESS_MS,
    GUESSES,
    MAX_SESSIONS,
    SESSION_MS,
    FormSecret,
    Guesses,
    Sessions,
    cookie_of,
    same_token,
)


def test_a_session_ends() -> None:
    clock = VirtualClock(1_700_000_000_000)
    sessions = Sessions(clock)
    one, other = sessions.begin(), sessions.begin()
    assert sessions.knows(one)
    assert not sessions.knows(one[:-1])
    assert not sessions.knows("")
    sessions.end(other)
    assert not sessions.knows(other)
    clock.advance_ms(SESSION_MS - 1)
    assert sessions.knows(one)
    clock.advance_ms(1)
    assert not sessions.knows(one)


def test_sessions_are_bounded() -> None:
    sessions = Sessions(VirtualClock())
    first = sessions.begin()
    rest = [sessions.begin() for _ in range(MAX_SESSIONS)]
    assert not sessions.knows(first)
    assert all(map(sessions.knows, rest))


def test_who_guesses_waits() -> None:
    clock = VirtualClock()
    guesses = Guesses(clock)
    for _ in range(GUESSES):
        assert guesses.wait_ms("10.0.0.1") == 0
        guesses.note("10.0.0.1")
        clock.advance_ms(1000)
    assert guesses.wait_ms("10.0.0.1") == GUESS_MS - 1000 * GUESSES
    assert guesses.wait_ms("10.0.0.2") == 0, "others do not wait for it"
    clock.advance_ms(GUESS_MS - 1000 * GUESSES)
    assert guesses.wait_ms("10.0.0.1") == 0


def test_who_guesses_from_many_addresses_waits_too() -> None:
    clock = VirtualClock()
    guesses = Guesses(clock)
    for number in range(ALL_GUESSES):
        guesses.note(f"10.0.1.{number}")
    assert guesses.wait_ms("10.0.0.1") == GUESS_MS
    clock.advance_ms(GUESS_MS)
    assert guesses.wait_ms("10.0.0.1") == 0


def test_the_secret_of_a_form_is_of_one_session() -> None:
    secret = FormSecret()
    assert secret.is_right("session", secret.of("session"))
    assert not secret.is_right("other", secret.of("session"))
    assert not secret.is_right("session", FormSecret().of("session"))
    assert not secret.is_right("session", "")
    assert not secret.is_right("session", "\udcff")


def test_tokens() -> None:
    assert same_token("abcdefghijklmnop", "abcdefghijklmnop")
    assert not same_token("abcdefghijklmnop", "abcdefghijklmnoq")
    assert not same_token("abcdefghijklmnop", "\udcff")


def test_the_cookie_among_others() -> None:
    assert cookie_of({"cookie": "a=b; kbroker_console=xyz; kbroker_console_2=no"}) == "xyz"
    assert cookie_of({"cookie": "kbroker_console"}) == ""
    assert cookie_of({}) == ""
