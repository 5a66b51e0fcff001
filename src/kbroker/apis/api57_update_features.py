"""UpdateFeatures: sets levels of the cluster's features, all of a request or none (KIP-584).

Source: ``QuorumController.updateFeatures``, ``ControllerApis.handleUpdateFeatures``.
"""

from __future__ import annotations

from kbroker.common.errors import KafkaError
from kbroker.common.java.java_hash import hash_map_order
from kbroker.metadata.features import FeatureUpdate
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

LAST_WITH_RESULTS = 1
_FAILED = "The update failed for all features since the following feature had an error: "


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Change levels, or only check whether they could be changed."""
    ctx.auth.require(request, checks.UPDATE_FEATURES)
    asked = {one["Feature"]: one for one in body["FeatureUpdates"]}  # the last of duplicates counts
    names = hash_map_order(asked)  # Kafka's order: the message names the first feature that has an error
    updates = [FeatureUpdate(name, asked[name]["MaxVersionLevel"], asked[name]["UpgradeType"]) for name in names]
    try:
        ctx.features.update(updates, ctx.node_id, validate_only=body["ValidateOnly"])
    except KafkaError as error:
        return {"ErrorCode": int(error.error), "ErrorMessage": _FAILED + error.message, "Results": []}
    results = []
    if request.api_version <= LAST_WITH_RESULTS:
        results = [
            {"Feature": one["Feature"], "ErrorCode": 0, "ErrorMessage": "NONE"} for one in body["FeatureUpdates"]
        ]
    return {"ErrorCode": 0, "ErrorMessage": None, "Results": results}
