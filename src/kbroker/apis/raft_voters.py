"""Responses of AddRaftVoter and RemoveRaftVoter where the voters cannot change.

Source: ``KafkaRaftClient``: cluster id, voter and feature are checked in this order.
"""

from __future__ import annotations

from typing import Any

from kbroker.common.errors import Errors
from kbroker.metadata.topics import ZERO_ID
from kbroker.requests.context import ApiContext, Body


def refusal(ctx: ApiContext, body: Body, verb: str) -> dict[str, Any]:
    """Return the response to a request to "Add" or "Remove" a voter."""
    cluster_id = body["ClusterId"]
    if cluster_id is not None and cluster_id != ctx.cluster_id:
        text = f'The given id "{cluster_id}" doesn\'t match the cluster id "{ctx.cluster_id}"'
        return {"ErrorCode": int(Errors.INCONSISTENT_CLUSTER_ID), "ErrorMessage": text}
    if body["VoterId"] < 0 or body["VoterDirectoryId"] == ZERO_ID:
        text = f"{verb} voter request didn't include a valid voter"
        return {"ErrorCode": int(Errors.INVALID_REQUEST), "ErrorMessage": text}
    what = "adding" if verb == "Add" else "removing"
    text = f"Cluster doesn't support {what} voter because the kraft.version feature is 0"
    return {"ErrorCode": int(Errors.UNSUPPORTED_VERSION), "ErrorMessage": text}
