"""CreateDelegationToken: an authenticated user gets a token, for itself or for another user (KIP-373).

Source: ``KafkaApis.handleCreateTokenRequest``, ``DelegationTokenControlManager.createDelegationToken``.
"""

from __future__ import annotations

from kbroker.apis.token_requests import allows_token_requests
from kbroker.common.errors import Errors
from kbroker.common.java.java_text import body_as_java_reads
from kbroker.common.security.delegation_token import USER_TYPE, Principal
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.forward import Forward
from kbroker.security.authorizer import checks

FIRST_WITH_REQUESTER = 3
ANONYMOUS = Principal(USER_TYPE, "ANONYMOUS")


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Create a token."""
    body = body_as_java_reads(body)  # names are stored
    found = before_forwarding(ctx, body, request)
    if not isinstance(found, Forward):
        return found
    owner, requester = _owner(body, request), Principal.parse(request.principal)
    if ctx.delegation_tokens is None:
        return _refused(Errors.DELEGATION_TOKEN_AUTH_DISABLED, owner, requester, request, time_ms=0)
    renewers = tuple(Principal(one["PrincipalType"], one["PrincipalName"]) for one in body["Renewers"])
    token = ctx.delegation_tokens.create(owner, requester, renewers, body["MaxLifetimeMs"])
    return {
        **_refused(Errors.NONE, owner, requester, request),
        "IssueTimestampMs": token.issue_ms,
        "ExpiryTimestampMs": token.expiry_ms,
        "MaxTimestampMs": token.max_ms,
        "TokenId": token.token_id,
        "Hmac": ctx.delegation_tokens.hmac_of(token.token_id),
    }


def before_forwarding(ctx: ApiContext, body: Body, request: RequestContext) -> Forward | Body:
    """Perform the broker's own checks before the controller creates a token; return any refusal."""
    if body["OwnerPrincipalName"] and body["OwnerPrincipalType"] is None:
        return failure(body, Errors.UNKNOWN_SERVER_ERROR, request)  # as in Kafka, whose principals have a type
    owner, requester = _owner(body, request), Principal.parse(request.principal)
    if not allows_token_requests(ctx, request):
        return _refused(Errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, owner, requester, request)
    if owner != requester and not ctx.auth.allows(
        request, checks.CREATE_DELEGATION_TOKEN, f"{owner.type}:{owner.name}"
    ):
        return _refused(checks.CREATE_DELEGATION_TOKEN.error, owner, requester, request)
    if any(one["PrincipalType"] != USER_TYPE for one in body["Renewers"]):
        return _refused(Errors.INVALID_PRINCIPAL_TYPE, owner, requester, request)
    return Forward()


def _owner(body: Body, request: RequestContext) -> Principal:
    """Return the owner of the new token: the named user, or the client itself."""
    name = body["OwnerPrincipalName"]
    return Principal(body["OwnerPrincipalType"], name) if name else Principal.parse(request.principal)


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return a response with the error, without a token."""
    return _refused(error, ANONYMOUS, ANONYMOUS, request)


def _refused(error: Errors, owner: Principal, requester: Principal, request: RequestContext, time_ms: int = -1) -> Body:
    body = {
        "ErrorCode": int(error),
        "PrincipalType": owner.type,
        "PrincipalName": owner.name,
        "IssueTimestampMs": time_ms,
        "ExpiryTimestampMs": time_ms,
        "MaxTimestampMs": time_ms,
        "TokenId": "",
        "Hmac": b"",
    }
    if request.api_version >= FIRST_WITH_REQUESTER:
        body.update(TokenRequesterPrincipalType=requester.type, TokenRequesterPrincipalName=requester.name)
    return body
