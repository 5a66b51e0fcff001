"""CreateAcls: rules that apply when the response is sent. Source: ``AclApis.handleCreateAcls``."""

from __future__ import annotations

from kbroker.apis.api31_delete_acls import error_of
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_text import body_as_java_reads
from kbroker.common.security.acls import acl_of
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import error_fields
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Add each valid rule; an existing rule is not an error. Raises: KafkaError."""
    ctx.auth.require(request, checks.CREATE_ACLS)
    authorizer = ctx.auth.authorizer
    if authorizer is None:
        return failure(body, Errors.SECURITY_DISABLED, request)
    try:
        rows = body_as_java_reads(body["Creations"])
        results = authorizer.create(
            [acl_of(row["ResourceType"], row["ResourceName"], row["ResourcePatternType"], row) for row in rows]
        )
    except KafkaError as refusal:
        results = [refusal] * len(body["Creations"])
    return {"Results": [_result(error) for error in results]}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every rule with the same error."""
    return {"Results": [_result(error_of(error)) for _ in body["Creations"]]}


def _result(error: KafkaError | None) -> Body:
    return {"ErrorCode": 0, "ErrorMessage": ""} if error is None else error_fields(error)  # not null: as in Kafka
