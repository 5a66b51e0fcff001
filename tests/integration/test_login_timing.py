"""Duration of refused logins, which must not depend on the wrong part (CVE-2021-38153)."""

import random
import statistics
import time

import pytest

from tests.support.certificates import Certificates
from tests.support.secured import PASSWORDS, SecuredBroker

PASSWORD = PASSWORDS["alice"]
LOGINS = {
    "unknown user": ("mallo", PASSWORD),
    "wrong from the first byte": ("alice", "x" * len(PASSWORD)),
    "wrong in the last byte": ("alice", PASSWORD[:-1] + "x"),
    "shorter": ("alice", PASSWORD[:3]),
}
MAX_T = 4.5
SLOWEST = 0.1  # share of the samples that the system delayed


def welch_t(some: list[float], others: list[float]) -> float:
    """Return Welch's t of two samples, without the slowest values of each."""
    kept = [sorted(one)[: int(len(one) * (1 - SLOWEST))] for one in (some, others)]
    (a, b), (x, y) = map(statistics.fmean, kept), map(statistics.variance, kept)
    return float(abs(a - b) / (x / len(kept[0]) + y / len(kept[1])) ** 0.5)


def refused_after_s(secured: SecuredBroker, user: str, password: str) -> float:
    """Return the time from the token to the response."""
    with secured.connect("SASL") as connection:
        connection.call("SaslHandshake", 1, {"Mechanism": "PLAIN"})
        begun = time.perf_counter()
        assert (
            connection.call("SaslAuthenticate", 2, {"AuthBytes": f"\0{user}\0{password}".encode()})["ErrorCode"] == 58
        )
        return time.perf_counter() - begun


@pytest.mark.slow
def test_refused_logins_take_the_same_time(certificates: Certificates, soak: bool) -> None:
    """Welch's t of any two kinds of wrong logins is below 4.5, in random order and without the delay of failures."""
    rng = random.Random(1)
    order = list(LOGINS) * (2000 if soak else 300)
    rng.shuffle(order)
    samples: dict[str, list[float]] = {kind: [] for kind in LOGINS}
    with SecuredBroker(certificates, {"connection.failed.authentication.delay.ms": 0}) as secured:
        for kind in order:
            samples[kind].append(refused_after_s(secured, *LOGINS[kind]))
    kinds = list(LOGINS)
    found = {(a, b): welch_t(samples[a], samples[b]) for i, a in enumerate(kinds) for b in kinds[i + 1 :]}
    print({" / ".join(pair): round(t, 2) for pair, t in found.items()})
    print({kind: f"median {statistics.median(values) * 1e6:.1f} us" for kind, values in samples.items()})
    assert max(found.values()) < MAX_T


def test_the_statistic_sees_a_difference() -> None:
    """The statistic detects a difference of two in a hundred with the noise of a socket."""
    rng = random.Random(2)
    some, others = ([rng.gauss(mean, 10) for _ in range(2000)] for mean in (100, 102))
    assert welch_t(some, others) > MAX_T
    assert welch_t(some[:1000], some[1000:]) < MAX_T
