"""ListConfigResources: resources that can have configs; version 0 lists only client metrics subscriptions."""

from __future__ import annotations

from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.errors import Errors
from kbroker.requests.cluster import registered_nodes
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """List the resources of the given types, of every type when none is given; in v0, client metrics alone."""
    ctx.auth.require(request, checks.LIST_CONFIG_RESOURCES)
    if request.api_version == 0:
        wanted = [int(ConfigResourceType.CLIENT_METRICS)]
    else:
        wanted = list(dict.fromkeys(body["ResourceTypes"])) or [int(kind) for kind in ConfigResourceType]
    if any(kind not in ConfigResourceType._value2member_map_ for kind in wanted):
        return {"ErrorCode": int(Errors.UNSUPPORTED_VERSION), "ConfigResources": []}
    found = [{"ResourceName": name, "ResourceType": kind} for kind in wanted for name in _names(ctx, kind, request)]
    return {"ErrorCode": 0, "ConfigResources": found}


def _names(ctx: ApiContext, kind: int, request: RequestContext) -> list[str]:
    if kind == ConfigResourceType.TOPIC:
        return [view.name for view in ctx.topics.all()]
    if kind in (ConfigResourceType.GROUP, ConfigResourceType.CLIENT_METRICS):
        return sorted(name for found, name in ctx.image.configs if found == kind)
    return [str(node_id) for node_id in registered_nodes(ctx, request.listener)]
