"""Work that only request_percentage limits: TLS, decompression, sending of files, many small requests.

The times are measured on the system clock, so the fastest of several runs counts; the bounds are wide, and the compared
times differ by much more.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator

import pytest

from kbroker._core.metrics.stats import CumulativeSum
from kbroker.metrics.registry import MetricName
from kbroker.protocol import codec
from tests.support import wire
from tests.support.certificates import Certificates
from tests.support.client import Client, fetch_body, produce_body, row_of
from tests.support.secured import SecuredBroker

PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
MIB = 1 << 20
RUNS = 5

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def secured(certificates: Certificates) -> Iterator[SecuredBroker]:
    changes = {"num.network.threads": 1, "message.max.bytes": 32 * MIB, "log.flush.interval.messages": 2**63 - 1}
    with SecuredBroker(certificates, changes) as secured:
        secured.broker.create_topic("t")
        yield secured


class Charged:
    """Client with a quota out of reach, and the request time that its sensor is charged."""

    def __init__(self, secured: SecuredBroker, connection: Client) -> None:
        client_id = connection.client_id
        assert client_id is not None
        quotas = secured.broker.context.quotas
        quotas.update(None, client_id, "request_percentage", 1e6)
        name = MetricName.of("total", "test", {"client-id": client_id})
        quotas.request.sensor("ANONYMOUS", client_id).add(name, CumulativeSum())
        found = secured.broker.context.metrics.get(name)
        assert found is not None
        self.metric = found
        self.connection = connection

    def time_ms(self, work: Callable[[Charged], object]) -> float:
        """Return the thread time of the fastest run in milliseconds."""
        self.connection.call(API_VERSIONS, 0, {})
        found = []
        for _ in range(RUNS):
            before = self.metric.measure()
            work(self)
            self.connection.call(API_VERSIONS, 0, {})  # served when the earlier requests have been charged
            found.append((self.metric.measure() - before) * 10)
        return min(found)


@pytest.fixture
def plain(secured: SecuredBroker, request: pytest.FixtureRequest) -> Iterator[Charged]:
    with secured.connect("PLAINTEXT", f"plain-{request.node.name}") as connection:
        yield Charged(secured, connection)


def produce(batch: bytes, times: int) -> Callable[[Charged], None]:
    def work(client: Charged) -> None:
        for _ in range(times):
            assert row_of(client.connection.call(PRODUCE, 7, produce_body("t", batch)))["ErrorCode"] == 0

    return work


def fetch(offset: int, max_bytes: int) -> Callable[[Charged], None]:
    def work(client: Charged) -> None:
        body = fetch_body("t", offset, max_bytes=max_bytes, partition_max_bytes=max_bytes)
        assert len(row_of(client.connection.call(FETCH, 11, body))["Records"]) >= max_bytes // 2

    return work


def test_tls_costs_more_than_plaintext(secured: SecuredBroker, plain: Charged) -> None:
    """Requests over TLS are charged the network thread's time for the encryption."""
    work = produce(wire.batch([os.urandom(MIB // 2)]), 8)
    with secured.connect_tls("TLS", "over-tls") as connection:
        charged = Charged(secured, connection)
        pairs = [(charged.time_ms(work), plain.time_ms(work)) for _ in range(RUNS)]
    over_tls, in_plaintext = (min(column) for column in zip(*pairs, strict=True))
    print(f"8 x 512 KiB: {in_plaintext:.2f} ms in plaintext, {over_tls:.2f} ms over TLS")
    # 1.2 to 2 times as much; with AES in hardware, the copies that both need take most of the time
    assert over_tls > 1.05 * in_plaintext


def test_opening_a_batch_is_charged(plain: Charged) -> None:
    """The decompression of a few KiB to 16 MiB is charged."""
    packed = gzip.compress(wire.record(0, bytes(16 * MIB)), 9)
    opened = plain.time_ms(produce(wire.batch([b""], records=packed, attributes=wire.CODECS["gzip"]), 4))
    as_it_is = plain.time_ms(produce(wire.batch([bytes(len(packed))]), 4))
    print(f"4 x {len(packed)} bytes: {as_it_is:.2f} ms as they are, {opened:.2f} ms compressed")
    assert opened > 5 * as_it_is


def network_ms(secured: SecuredBroker) -> float:
    """Return the network threads' time for consumers' fetches so far."""
    for family, samples in secured.broker.exposition.collect():
        if family.name == "network-time-ns":
            return sum(float(s.value) for s in samples if s.labels == ("FetchConsumer",)) / 1e6  # type: ignore[arg-type, misc]
    raise AssertionError


def test_sending_from_files_is_charged(secured: SecuredBroker, plain: Charged) -> None:
    """Sixteen MiB that are sent by sendfile are charged the network thread's time."""
    for _ in range(17):
        produce(wire.batch([os.urandom(MIB)]), 1)(plain)
    end = wire.end_offset(secured.address("PLAINTEXT"), "t")
    small = plain.time_ms(fetch(end - 1, 100))
    before = network_ms(secured)
    large = plain.time_ms(fetch(end - 17, 16 * MIB))
    network = (network_ms(secured) - before) / RUNS
    print(f"16 MiB: {large:.2f} ms, {network:.2f} of the network thread on average; one MiB {small:.2f} ms")
    assert large > 3 * small
    assert network > large / 3


def test_many_tiny_requests_cost_more_than_their_bytes(plain: Charged) -> None:
    """10,000 small requests are charged more time than one of a MiB, although they have fewer bytes."""
    frame = codec.encode_request_frame(API_VERSIONS, 0, 0, plain.connection.client_id, {})
    assert 10_000 * len(frame) < MIB

    def tiny(client: Charged) -> None:
        for _ in range(500):
            client.connection.send_raw(frame * 20)
            for _ in range(20):
                client.connection.receive()

    spent = plain.time_ms(tiny)
    megabyte = plain.time_ms(produce(wire.batch([os.urandom(MIB)]), 1))
    print(f"10,000 tiny requests {spent:.2f} ms, one of a MiB {megabyte:.2f} ms")
    assert spent > 1.5 * megabyte
