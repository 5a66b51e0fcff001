"""Who may read the HTTP port by a token, on the virtual clock."""

from email.message import Message

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.server.metrics.http_access import HttpAccess
from kbroker.server.metrics.wrong_tokens import ALL_GUESSES, GUESS_MS, GUESSES, MAX_RIGHT

TOKEN = "a-token-of-the-broker"
AWAY = "10.0.0.1"


def bearer(token: str) -> Message:
    headers = Message()
    headers["Authorization"] = f"Bearer {token}"
    return headers


def status(access: HttpAccess, token: str, peer: str = AWAY) -> int:
    """What a request with this token is answered; 200: it is served."""
    refusal = access.refusal(peer, bearer(token))
    return 200 if refusal is None else refusal.status


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1_700_000_000_000)


@pytest.fixture
def access(clock: VirtualClock) -> HttpAccess:
    return HttpAccess(TOKEN, clock)


@pytest.mark.parametrize("wrong", ["", TOKEN[:-1], TOKEN + "x", TOKEN[:-1] + "\u00e9"])
def test_a_token_is_right_or_wrong(access: HttpAccess, wrong: str) -> None:
    assert status(access, wrong) == 401
    assert status(access, TOKEN) == 200
    assert status(access, f" {TOKEN} ") == 200


def test_an_address_that_guesses_waits(access: HttpAccess, clock: VirtualClock) -> None:
    for _ in range(GUESSES):
        assert status(access, "wrong") == 401
        clock.advance_ms(1000)
    refusal = access.refusal(AWAY, bearer(TOKEN))
    assert refusal is not None, "a guesser does not learn that the sixth token is right"
    assert (refusal.status, refusal.retry_after_s) == (429, (GUESS_MS - 1000 * GUESSES) // 1000)
    assert status(access, TOKEN, "10.0.0.2") == 200, "others do not wait for it"
    clock.advance_ms(GUESS_MS - 1000 * GUESSES - 1)
    assert status(access, TOKEN) == 429
    clock.advance_ms(1)
    assert status(access, TOKEN) == 200


def test_guesses_from_many_addresses_count_together(access: HttpAccess, clock: VirtualClock) -> None:
    assert status(access, TOKEN, "10.0.0.2") == 200
    for number in range(ALL_GUESSES):
        assert status(access, "wrong", f"10.0.1.{number}") == 401
    assert status(access, TOKEN) == 429, "a stranger waits"
    assert status(access, TOKEN, "10.0.0.2") == 200, "who was right before does not wait for strangers"
    clock.advance_ms(GUESS_MS)
    assert status(access, TOKEN) == 200


def test_right_tokens_are_no_guesses(access: HttpAccess) -> None:
    assert [status(access, TOKEN) for _ in range(10 * ALL_GUESSES)] == [200] * (10 * ALL_GUESSES)


def test_of_addresses_that_were_right_the_latest_are_known(access: HttpAccess) -> None:
    for number in range(MAX_RIGHT + 1):
        assert status(access, TOKEN, f"peer {number}") == 200
    for number in range(ALL_GUESSES):
        assert status(access, "wrong", f"10.0.1.{number}") == 401
    assert status(access, TOKEN, "peer 0") == 429
    assert status(access, TOKEN, "peer 1") == 200


def test_without_a_token_none_is_right(clock: VirtualClock) -> None:
    assert status(HttpAccess(None, clock), "") == 401
