"""AlterConfigs: the given set replaces all dynamic configs of a resource."""

from __future__ import annotations

from kbroker.server.apis.api44_incremental_alter_configs import each_resource, failure
from kbroker.server.context import ApiContext, Body, RequestContext

__all__ = ["failure", "handle"]


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Replace the configs of each resource, or only check them. A duplicate resource gets no response, as in Kafka."""

    def replace(resource: Body) -> None:
        configs = [(row["Name"], row["Value"]) for row in resource["Configs"]]
        ctx.dynamic.replace(resource["ResourceType"], resource["ResourceName"], configs, body["ValidateOnly"])

    return each_resource(body, replace)
