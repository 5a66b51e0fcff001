"""Log of connections that are closed instead of getting a response."""

import logging
from typing import cast

import pytest

from kbroker.listeners.refusal_watch import RefusalWatch
from kbroker.network.connections._refused_requests import RefusedRequests
from kbroker.network.connections.refusal import Refusal

CONNECTION = "127.0.0.1:9092-127.0.0.1:52134-0-1"
HEADER = "Error parsing request header. Our best guess of the apiKeyId is:"
PREFIX = f"Closing socket for {CONNECTION} because of error: "


class Refused:
    """Replacement of RefusedRequests with the refusals since the last look."""

    def __init__(self, *kept: Refusal, left_out: int = 0) -> None:
        self.now = list(kept), left_out

    def counts(self) -> dict[str, int]:
        return {}

    def take(self) -> tuple[list[Refusal], int]:
        taken, self.now = self.now, ([], 0)
        return taken


def made(reason: str, api_key: int, api_version: int, size_bytes: int, error_code: int = 0) -> Refusal:
    return Refusal(reason, api_key, api_version, 7, error_code, size_bytes, CONNECTION, "PLAINTEXT")


def lines(caplog: pytest.LogCaptureFixture, refused: Refused) -> list[str]:
    caplog.clear()
    watch = RefusalWatch(cast(RefusedRequests, refused), {3: (0, 13)}, {3: "Metadata"}, 104857600)
    with caplog.at_level(logging.WARNING):
        watch.look()
        watch.look()  # a second look logs nothing
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (("unknown-api", 999, 0, 14), f"{HEADER} 999 (not served)"),
        (("unknown-api", -1, 0, 14), f"{HEADER} -1"),
        (("malformed-header", 3, 1, 14), f"{HEADER} 3 (Metadata)"),
        (("malformed-header", -1, -1, 1), f"{HEADER} -1"),
        (("unsupported-version", 3, 99, 14),
         "Unsupported api with key 3 (Metadata) and version 99; versions 0 to 13 are served"),
        (
            ("malformed-body", 3, 1, 17),
            f"Error getting request for apiKey: Metadata, apiVersion: 1, connectionId: {CONNECTION}, "
            "listenerName: PLAINTEXT; its 17 bytes are malformed",
        ),
        (
            ("failed-produce", 0, 7, 90, 3),
            "error during produce request with correlation id 7 with ack=0: UNKNOWN_TOPIC_OR_PARTITION",
        ),
        (("invalid-receive", -1, -1, -5), "Invalid receive (size = -5)"),
        (("invalid-receive", -1, -1, 200000000), "Invalid receive (size = 200000000 larger than 104857600)"),
        (
            ("invalid-receive", -1, -1, 600000),
            "Invalid receive (size = 600000 larger than sasl.server.max.receive.size, which holds until the client is "
            "authenticated)",
        ),
        (
            ("invalid-receive", -1, -1, 0x47455420),
            "Invalid receive (size = 1195725856 larger than 104857600); the bytes are an HTTP request's ('GET ')",
        ),
        (
            ("invalid-receive", -1, -1, 0x16030102),
            "Invalid receive (size = 369295618 larger than 104857600); the bytes are a TLS handshake's: is "
            "security.protocol=SSL used with a plaintext listener?",
        ),
    ],
)  # fmt: skip
def test_each_reason_in_kafkas_words(
    caplog: pytest.LogCaptureFixture, refusal: tuple[str, int, int, int] | tuple[str, int, int, int, int], expected: str
) -> None:
    """One line has the connection, the error and a likely cause."""
    assert lines(caplog, Refused(made(*refusal))) == [PREFIX + expected]


def test_what_is_left_out_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """The number of omitted refusals is logged after the kept ones."""
    kept = made("invalid-receive", -1, -1, -5)
    assert lines(caplog, Refused(kept, left_out=3)) == [
        f"{PREFIX}Invalid receive (size = -5)",
        "3 more sockets were closed for requests like the last ones",
    ]


class Counted(Refused):
    """Stand-in that keeps two refusals and counts all."""

    def __init__(self) -> None:
        super().__init__()
        self.all: dict[str, int] = {}

    def refuse(self, reason: str) -> None:
        kept, left_out = self.now
        self.now = ([*kept, made(reason, 999, 0, 14)], left_out) if len(kept) < 2 else (kept, left_out + 1)
        self.all[reason] = self.all.get(reason, 0) + 1

    def counts(self) -> dict[str, int]:
        return dict(self.all)


def test_the_request_log_gets_every_refusal_once() -> None:
    """A kept refusal is one row, and the others are a count per reason, also for a refusal during a look."""
    refused = Counted()
    noted: list[tuple[Refusal, int]] = []
    watch = RefusalWatch(cast(RefusedRequests, refused), {}, {}, 100, noted.extend)
    watch.look()
    assert noted == []
    for reason in ("unknown-api", "malformed-header", "unknown-api", "unknown-api", "malformed-body"):
        refused.refuse(reason)
    watch.look()
    kept = [(made("unknown-api", 999, 0, 14), 1), (made("malformed-header", 999, 0, 14), 1)]
    others = [
        (Refusal(reason, -1, -1, -1, 0, -1, "", ""), n) for reason, n in (("unknown-api", 2), ("malformed-body", 1))
    ]
    assert noted == kept + others
    take = refused.take

    def late_take() -> tuple[list[Refusal], int]:
        refused.refuse("unknown-api")  # counted after the look has read the counts
        return take()

    refused.take = late_take  # type: ignore[method-assign]
    watch.look()
    refused.take = take  # type: ignore[method-assign]
    watch.look()
    assert noted[4:] == [(made("unknown-api", 999, 0, 14), 1)]
    watch.look()
    assert sum(number for _, number in noted) == sum(refused.all.values())
