"""DeleteAcls: removes the rules that match filters, before the response is sent.

Source: ``AclApis.handleDeleteAcls``.
"""

from __future__ import annotations

from kbroker.apis.api29_describe_acls import acl_filter
from kbroker.common.errors import Errors, KafkaError
from kbroker.metadata.image.record_forms import acl_fields
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import error_fields
from kbroker.security.authorizer import checks
from kbroker.security.authorizer.authorizer import Deleted

NO_AUTHORIZER = "No Authorizer is configured."


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Remove the rules that match each filter, in one step. Raises: KafkaError."""
    ctx.auth.require(request, checks.DELETE_ACLS)
    authorizer = ctx.auth.authorizer
    if authorizer is None:
        return failure(body, Errors.SECURITY_DISABLED, request)
    try:
        results = authorizer.delete([acl_filter(row) for row in body["Filters"]])
    except KafkaError as refusal:
        results = [Deleted((), refusal)] * len(body["Filters"])
    return {"FilterResults": [_result(result) for result in results]}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every filter with the same error."""
    return {"FilterResults": [_result(Deleted((), error_of(error))) for _ in body["Filters"]]}


def error_of(error: Errors) -> KafkaError:
    """Return the error of each rule or filter of a request that failed as a whole."""
    return KafkaError(error, NO_AUTHORIZER if error is Errors.SECURITY_DISABLED else error.message)


def _result(result: Deleted) -> Body:
    acls = [{**error_fields(None), **acl_fields(acl)} for acl in result.acls]
    return {**error_fields(result.error), "MatchingAcls": acls}
