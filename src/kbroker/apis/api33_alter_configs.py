"""AlterConfigs: the given set replaces all dynamic configs of a resource."""

from __future__ import annotations

from kbroker.apis.api44_incremental_alter_configs import (
    STORED,
    authorize,
    each_resource,
    failure,
    forward_rest,
)
from kbroker.common.configs.config_resource import ConfigChange, ConfigOperation, ConfigResourceType
from kbroker.metadata.configs.dynamic_configs import check_changes
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.forward import Forward
from kbroker.security.authorizer import checks

__all__ = ["before_forwarding", "failure", "handle"]

_CHECKS = dict.fromkeys(ConfigResourceType, checks.ALTER_CONFIGS_CLUSTER) | {
    ConfigResourceType.TOPIC: checks.ALTER_CONFIGS_TOPIC,
    ConfigResourceType.GROUP: checks.ALTER_CONFIGS_GROUP,
}


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Replace the configs of each resource, or only check them; a duplicate resource is not changed at all."""

    def replace(resource: Body) -> bool:
        configs = _configs(resource)
        authorize(ctx, request, resource, _CHECKS)
        ctx.dynamic.replace(resource["ResourceType"], resource["ResourceName"], configs, body["ValidateOnly"])
        return True

    return each_resource(body, replace)


def before_forwarding(ctx: ApiContext, body: Body, request: RequestContext) -> Forward | Body:
    """Check the configs of this broker; the controller does the rest."""

    def look(resource: Body) -> bool:
        configs = _configs(resource)
        if resource["ResourceType"] not in STORED:
            ctx.dynamic.replace(resource["ResourceType"], resource["ResourceName"], configs, validate_only=True)
        return False

    return forward_rest(body, look)


def _configs(resource: Body) -> list[tuple[str, str | None]]:
    """Return the configs of a resource. Raises: KafkaError for duplicates and null values."""
    configs = [(row["Name"], row["Value"]) for row in resource["Configs"]]
    check_changes([ConfigChange(name, ConfigOperation.SET, value) for name, value in configs])
    return configs
