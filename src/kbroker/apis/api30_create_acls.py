"""CreateAcls: rules that apply when the response is sent. Source: ``AclApis.handleCreateAcls``."""

from __future__ import annotations

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_text import body_as_java_reads
from kbroker.common.security.acls import Acl, Operation, PatternType, Permission, ResourceType, known
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

NO_AUTHORIZER = "No Authorizer is configured."


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Add each valid rule; an existing one is not an error. Raises: KafkaError."""
    ctx.auth.require(request, checks.CREATE_ACLS)
    authorizer = ctx.auth.authorizer
    if authorizer is None:
        return failure(body, Errors.SECURITY_DISABLED, request)
    try:
        results = authorizer.create([_acl(row) for row in body_as_java_reads(body["Creations"])])
    except KafkaError as refusal:
        results = [refusal] * len(body["Creations"])
    return {"Results": [_result(error) for error in results]}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every rule with the same error."""
    text = NO_AUTHORIZER if error is Errors.SECURITY_DISABLED else error.message
    return {"Results": [_result(KafkaError(error, text)) for _ in body["Creations"]]}


def _acl(row: Body) -> Acl:
    return Acl(
        known(ResourceType, row["ResourceType"]),
        row["ResourceName"],
        known(PatternType, row["ResourcePatternType"]),
        row["Principal"],
        row["Host"],
        known(Operation, row["Operation"]),
        known(Permission, row["PermissionType"]),
    )


def _result(error: KafkaError | None) -> Body:
    if error is None:
        return {"ErrorCode": 0, "ErrorMessage": ""}  # not null: as in Kafka
    return {"ErrorCode": int(error.error), "ErrorMessage": error.message}
