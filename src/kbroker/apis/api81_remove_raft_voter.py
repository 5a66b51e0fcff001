"""RemoveRaftVoter: one node is the whole quorum, and no voter can be removed.

Source: ``KafkaRaftClient.handleRemoveVoterRequest``, ``RemoveVoterHandler``.
"""

from __future__ import annotations

from kbroker.apis.api80_add_raft_voter import refusal
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Refuse, as Kafka does in such a cluster."""
    ctx.auth.require(request, checks.REMOVE_RAFT_VOTER)
    return refusal(ctx, body, "Remove")
