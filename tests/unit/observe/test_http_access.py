"""Access to the HTTP port by a token, on the virtual clock."""

from email.message import Message

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.observe.http_access import HttpAccess
from kbroker.observe.wrong_tokens import ALL_GUESSES, GUESS_MS, GUESSES, MAX_RIGHT, WrongTokens
from tests.support.fixtures import fixture_of

TOKEN = "a-token-of-the-broker"
AWAY = "10.0.0.1"


def bearer(token: str) -> Message:
    headers = Message()
    headers["Authorization"] = f"Bearer {token}"
    return headers


def status(access: HttpAccess, token: str, peer: str = AWAY) -> int:
    """Return the status of a request with this token; 200 means allowed."""
    refusal = access.refusal(peer, bearer(token))
    return 200 if refusal is None else refusal.status


clock = fixture_of(VirtualClock, 1_700_000_000_000)


@pytest.fixture
def access(clock: VirtualClock) -> HttpAccess:
    return HttpAccess(TOKEN, clock)


@pytest.mark.parametrize("wrong", ["", TOKEN[:-1], TOKEN + "x", TOKEN[:-1] + "\u00e9"])
def test_a_token_is_right_or_wrong(access: HttpAccess, wrong: str) -> None:
    assert status(access, wrong) == 401
    assert status(access, TOKEN) == 200
    assert status(access, f" {TOKEN} ") == 200


def test_a_token_is_compared_in_constant_time(access: HttpAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes are compared, so that neither the length nor the correct part of a token affects the duration."""
    compared: list[tuple[int, int]] = []

    def digest_is(given: bytes, wanted: bytes) -> bool:
        compared.append((len(given), len(wanted)))
        return given == wanted

    monkeypatch.setattr("hmac.compare_digest", digest_is)
    assert [status(access, token) for token in (TOKEN, "", TOKEN[:5], "x" * 10_000)] == [200, 401, 401, 401]
    assert compared == [(32, 32)] * 4


def test_an_address_that_guesses_waits(access: HttpAccess, clock: VirtualClock) -> None:
    for _ in range(GUESSES):
        assert status(access, "wrong") == 401
        clock.advance_ms(1000)
    refusal = access.refusal(AWAY, bearer(TOKEN))
    assert refusal is not None, "even a correct token is refused"
    assert (refusal.status, refusal.retry_after_s) == (429, (GUESS_MS - 1000 * GUESSES) // 1000)
    assert status(access, TOKEN, "10.0.0.2") == 200, "other addresses are not affected"
    clock.advance_ms(GUESS_MS - 1000 * GUESSES - 1)
    assert status(access, TOKEN) == 429
    clock.advance_ms(1)
    assert status(access, TOKEN) == 200


def test_an_address_that_must_wait_is_refused_before_its_password_is_checked(access: HttpAccess) -> None:
    for _ in range(GUESSES):
        assert access.password_refusal(AWAY) is None
        wrong = access.password_refusal(AWAY, is_right=False)
        assert wrong is not None
        assert wrong.status == 401
    waiting = access.password_refusal(AWAY)
    assert waiting is not None
    assert waiting.status == 429


def test_a_minute_later_the_guesses_count_anew(access: HttpAccess, clock: VirtualClock) -> None:
    """Each minute allows five wrong tokens, for as long as the guesses continue."""
    for _ in range(3):
        assert [status(access, "wrong") for _ in range(GUESSES + 2)] == [401] * GUESSES + [429] * 2
        clock.advance_ms(GUESS_MS)


def test_each_guess_is_forgotten_a_minute_after_it(access: HttpAccess, clock: VirtualClock) -> None:
    for _ in range(GUESSES):
        assert status(access, "wrong") == 401
        clock.advance_ms(GUESS_MS // GUESSES)
    assert [status(access, "wrong"), status(access, "wrong")] == [401, 429], "only the first of the five has expired"


def test_nothing_is_kept_of_addresses_whose_guesses_are_over(clock: VirtualClock) -> None:
    """Requests from many different addresses do not use memory permanently."""
    wrong = WrongTokens(clock)
    for number in range(ALL_GUESSES):
        assert wrong.wait_ms(f"10.0.1.{number}", is_right=False) == 0
    assert wrong.wait_ms(AWAY, is_right=False) == GUESS_MS
    assert len(wrong._wrong) == ALL_GUESSES, "a refused request is not counted"
    clock.advance_ms(GUESS_MS)
    assert wrong.wait_ms(AWAY, is_right=False) == 0
    assert list(wrong._wrong) == [AWAY]


def test_a_stranger_waits_until_fewer_guesses_are_left(clock: VirtualClock) -> None:
    """An unknown address waits until enough of the hundred guesses, some of them from known addresses, have expired."""
    wrong = WrongTokens(clock)
    for known in ("10.0.0.2", "10.0.0.3"):
        assert wrong.wait_ms(known, is_right=True) == 0
    for number in range(ALL_GUESSES):
        assert wrong.wait_ms(f"10.0.1.{number}", is_right=False) == 0
        clock.advance_ms(10)
    assert wrong.wait_ms(AWAY, is_right=True) == GUESS_MS - 10 * ALL_GUESSES
    for known in ("10.0.0.2", "10.0.0.3"):
        assert wrong.wait_ms(known, is_right=False) == 0
    wait_ms = GUESS_MS - 10 * ALL_GUESSES + 20  # until the third of the hundred expires
    assert wrong.wait_ms(AWAY, is_right=True) == wait_ms
    clock.advance_ms(wait_ms)
    assert wrong.wait_ms(AWAY, is_right=True) == 0


def test_guesses_from_many_addresses_count_together(access: HttpAccess, clock: VirtualClock) -> None:
    assert status(access, TOKEN, "10.0.0.2") == 200
    for number in range(ALL_GUESSES):
        assert status(access, "wrong", f"10.0.1.{number}") == 401
    assert status(access, TOKEN) == 429, "an unknown address waits"
    assert status(access, TOKEN, "10.0.0.2") == 200, "an address with a correct token before does not wait"
    clock.advance_ms(GUESS_MS)
    assert status(access, TOKEN) == 200


def test_right_tokens_are_no_guesses(access: HttpAccess) -> None:
    assert [status(access, TOKEN) for _ in range(10 * ALL_GUESSES)] == [200] * (10 * ALL_GUESSES)


def test_of_addresses_that_were_right_the_latest_are_known(access: HttpAccess) -> None:
    """The addresses with the latest correct tokens are exempt, not those with the earliest."""
    for number in range(MAX_RIGHT):
        assert status(access, TOKEN, f"peer {number}") == 200
    for peer in ("peer 0", "another"):
        assert status(access, TOKEN, peer) == 200
    for number in range(ALL_GUESSES):
        assert status(access, "wrong", f"10.0.1.{number}") == 401
    assert status(access, TOKEN, "peer 1") == 429
    assert status(access, TOKEN, "peer 0") == 200


def test_without_a_token_none_is_right(clock: VirtualClock) -> None:
    assert status(HttpAccess(None, clock), "") == 401
