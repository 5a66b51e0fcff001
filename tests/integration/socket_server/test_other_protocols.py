"""Servers of protocols other than Kafka's, whose requests have no Kafka header."""

import threading

import pytest

from kbroker._core.requests.request_queue import Queue
from kbroker.handlers._native_apis import NativeApis
from kbroker.metrics.registry import Metrics
from kbroker.network._request_metrics import RequestMetrics
from kbroker.network.options import SocketServerOptions
from kbroker.network.processor._processor import Processor
from kbroker.network.request_channel import RequestChannel
from kbroker.quota._client_quotas import ClientQuotaManagers
from tests.support.socket_rig import Rig, assert_closed, frame, response


def test_lines_are_served_without_kafkas_part(backend: object) -> None:
    """Every method of a request works without a Kafka header; the marks for Kafka's metrics have no effect."""
    rig = Rig(backend, framing="delimiter", delimiter=b"\n")
    client = rig.connect()
    client.sendall(b"one\ntwo\n")
    request = rig.receive()
    assert (bytes(request.payload), bytes(request.body)) == (b"one", b"one")
    assert (request.api_key, request.correlation_id, request.client_id) == (0, 0, None)
    request.mark_errors({7: 1})
    request.leave_out()
    request.handler_done()
    request.hand_over(rig.channel.queue)
    request = rig.receive()
    assert request.was_examined
    request.respond(b"1\n")
    rig.receive().respond(b"2\n")
    assert client.makefile("rb").read(4) == b"1\n2\n"
    assert rig.server.request_metrics == []
    rig.close()


def test_another_length_prefixed_protocol(backend: object) -> None:
    """`kafka_requests=False` disables header and metrics with length-prefix framing too."""
    rig = Rig(backend, kafka_requests=False)
    client = rig.connect()
    client.sendall(frame(b"x" * 100))
    rig.receive().respond(b"y")
    assert response(client) == b"y"
    assert rig.server.request_metrics == []
    rig.close()


def test_kafkas_quotas_refuse_its_requests(backend: object) -> None:
    """Quota managers refuse requests without a client id and a throttle time."""
    rig = Rig(backend, kafka_requests=False)
    client = rig.connect()
    client.sendall(frame(b"x"))
    request = rig.receive()
    quotas = ClientQuotaManagers(None, Metrics())
    for method in (quotas.charge, quotas.charge_exempt, quotas.settle):
        with pytest.raises(ValueError, match="a request of Kafka's protocol is needed"):
            method(request)
    with pytest.raises(ValueError, match="a request of Kafka's protocol is needed"):
        quotas.throttle(quotas.request, request, 10)
    request.respond(b"y")
    assert response(client) == b"y"
    rig.close()


def test_native_handlers_close_its_connections(backend: object) -> None:
    """Native handlers close the connections of requests of another protocol."""
    rig = Rig(backend, framing="delimiter", delimiter=b"\n")
    native_apis = NativeApis(None, rig.channel.queue, Queue(10), 1)
    handler = threading.Thread(target=native_apis.run_handler)
    handler.start()
    client = rig.connect()
    client.sendall(b"a line\nanother\n")
    assert_closed(client)
    rig.close()
    handler.join(10)
    assert not handler.is_alive()
    native_apis.close()


def test_what_needs_kafkas_part_is_refused() -> None:
    """Request metrics are refused for a server that does not parse Kafka's header."""
    queue = RequestChannel().queue
    with pytest.raises(ValueError, match="need requests of Kafka's protocol"):
        Processor("LINES", 0, queue, SocketServerOptions(framing="raw"), metrics=RequestMetrics())
    with pytest.raises(ValueError, match="need requests of Kafka's protocol"):
        Processor("LINES", 0, queue, SocketServerOptions(kafka_requests=False), metrics=RequestMetrics())
