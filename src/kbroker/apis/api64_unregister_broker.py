"""UnregisterBroker: neither the only broker nor a node of an embedded cluster can be unregistered.

Apache Kafka would unregister its last broker, and leave a cluster without any. Source:
``QuorumController.unregisterBroker``.
"""

from __future__ import annotations

from kbroker.common.errors import Errors
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Refuse to unregister any broker; an unknown id gets BROKER_ID_NOT_REGISTERED."""
    ctx.auth.require(request, checks.UNREGISTER_BROKER)
    broker_id = body["BrokerId"]
    if broker_id != ctx.node_id and broker_id not in ctx.image.brokers:
        text = f"Broker ID {broker_id} is not currently registered"
        return {"ErrorCode": int(Errors.BROKER_ID_NOT_REGISTERED), "ErrorMessage": text}
    if len(ctx.image.brokers) > 1:
        text = f"Broker {broker_id} is a node of this embedded cluster and stays registered"
    else:
        text = f"Broker {broker_id} is the only broker of its cluster and stays registered; stop it to remove it"
    return {"ErrorCode": int(Errors.INVALID_REQUEST), "ErrorMessage": text}
