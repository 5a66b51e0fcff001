"""DescribeAcls: the rules that match a filter. Source: ``AclApis.handleDescribeAcls``."""

from __future__ import annotations

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_text import body_as_java_reads
from kbroker.common.security.acls import (
    ACL_FIELDS,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    by_pattern,
    known,
)
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """List the rules, grouped by pattern. Raises: KafkaError."""
    ctx.auth.require(request, checks.DESCRIBE_ACLS)
    authorizer = ctx.auth.authorizer
    if authorizer is None:
        return failure(body, Errors.SECURITY_DISABLED, request)
    wanted = acl_filter(body)
    if UNKNOWN in (body["ResourceTypeFilter"], body["PatternTypeFilter"], body["Operation"], body["PermissionType"]):
        raise KafkaError(Errors.INVALID_REQUEST, "DescribeAclsRequest contains UNKNOWN elements")
    resources = [
        {
            "ResourceType": int(kind),
            "ResourceName": name,
            "PatternType": int(pattern),
            "Acls": [dict(zip(ACL_FIELDS[3:], acl[3:], strict=True)) for acl in acls],
        }
        for (kind, name, pattern), acls in by_pattern(authorizer.find(wanted))
    ]
    return {"ErrorCode": 0, "ErrorMessage": "", "Resources": resources}  # not null: as in Kafka


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return a response with the error, without rules."""
    text = "No Authorizer is configured on the broker" if error is Errors.SECURITY_DISABLED else error.message
    return {"ErrorCode": int(error), "ErrorMessage": text, "Resources": []}


UNKNOWN = 0


def acl_filter(body: Body) -> AclFilter:
    """Return the filter of DescribeAcls, or one of DeleteAcls."""
    return AclFilter(
        known(ResourceType, body["ResourceTypeFilter"]),
        body_as_java_reads(body["ResourceNameFilter"]),
        known(PatternType, body["PatternTypeFilter"]),
        body_as_java_reads(body["PrincipalFilter"]),
        body_as_java_reads(body["HostFilter"]),
        known(Operation, body["Operation"]),
        known(Permission, body["PermissionType"]),
    )
