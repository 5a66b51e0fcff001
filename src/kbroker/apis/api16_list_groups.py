"""ListGroups: all groups, or those of certain states and types."""

from __future__ import annotations

from kbroker.common.java.java_values import trim
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """List groups; filters count from v4 (states) and v5 (types), in upper or lower case; unknown names match nothing.

    As in Kafka, space around a state does not count. Kafka matches NotReady, the state in its responses, as not_ready
    only; here both match.
    """
    asked = [trim(state.lower()) for state in body.get("StatesFilter") or ()]
    states = {"notready" if state == "not_ready" else state for state in asked}
    types = {kind.lower() for kind in body.get("TypesFilter") or ()}
    may_see_all = ctx.auth.allows(request, checks.LIST_GROUPS_ALL)
    groups = ctx.groups.list_groups()
    return {
        "ErrorCode": 0,
        "Groups": [
            {
                "GroupId": group.group_id,
                "ProtocolType": group.protocol_type,
                "GroupState": group.state.value,
                "GroupType": group.group_type,
            }
            for group in groups
            if (not states or group.state.value.lower() in states)
            and (not types or group.group_type in types)
            and (may_see_all or ctx.auth.allows(request, checks.LIST_GROUPS, group.group_id))
        ],
    }
