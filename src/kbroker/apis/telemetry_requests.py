"""The sender of a request about client telemetry."""

from __future__ import annotations

from kbroker.network.processor._inbound import InboundRequest
from kbroker.requests.context import RequestContext
from kbroker.telemetry.manager import Client


def client_of(request: RequestContext) -> Client:
    """Return the sender with the properties by which a subscription can match it."""
    facts: dict[str, str | None] = {"client_id": request.client_id, "client_source_address": request.client_host}
    inbound = request.inbound
    if not isinstance(inbound, InboundRequest):  # no connection
        return Client(facts, request.principal, "", lambda: True)
    name, version = inbound.client_information
    facts |= {
        "client_id": inbound.client_id,
        "client_software_name": name,
        "client_software_version": version,
        "client_source_port": str(inbound.remote_port),
    }
    return Client(facts, request.principal, inbound.connection_id, lambda: inbound.is_disconnected)
