"""AlterConfigs: the given set replaces all dynamic configs of a resource."""

from __future__ import annotations

from kbroker.apis.api44_incremental_alter_configs import AlterChecks, authorize, each_resource, failure
from kbroker.common.configs.config_resource import ConfigChange, ConfigOperation
from kbroker.metadata.configs.dynamic_configs import check_changes
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

__all__ = ["failure", "handle"]

_CHECKS = AlterChecks(
    checks.ALTER_CONFIGS_TOPIC, checks.ALTER_CONFIGS_GROUP, checks.ALTER_CONFIGS_CLUSTER, checks.ALTER_CONFIGS_CLUSTER
)


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Replace the configs of each resource, or only check them. A duplicate resource gets no response, as in Kafka."""

    def replace(resource: Body) -> None:
        configs = [(row["Name"], row["Value"]) for row in resource["Configs"]]
        check_changes([ConfigChange(name, ConfigOperation.SET, value) for name, value in configs])
        authorize(ctx, request, resource, _CHECKS)
        ctx.dynamic.replace(resource["ResourceType"], resource["ResourceName"], configs, body["ValidateOnly"])

    return each_resource(body, replace)
