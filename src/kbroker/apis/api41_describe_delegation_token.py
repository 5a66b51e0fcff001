"""DescribeDelegationToken: the existing tokens, with their secrets.

Source: ``KafkaApis.handleDescribeTokensRequest``, ``DelegationTokenManager.filterToken``.
"""

from __future__ import annotations

from kbroker.apis.token_requests import allows_token_requests
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_text import replace_invalid_utf8
from kbroker.common.security.delegation_token import DelegationToken, Principal
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

FIRST_WITH_REQUESTER = 3


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe the tokens of the named owners, or all; an empty list matches no token. Raises: KafkaError."""
    if not allows_token_requests(ctx, request):
        raise KafkaError(Errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    tokens = ctx.delegation_tokens
    if tokens is None:
        raise KafkaError(Errors.DELEGATION_TOKEN_AUTH_DISABLED)
    named = body["Owners"]
    owners = None
    if named is not None:
        owners = {
            Principal(replace_invalid_utf8(one["PrincipalType"]), replace_invalid_utf8(one["PrincipalName"]))
            for one in named
        }
    found = [
        token
        for token in tokens.all()
        if (owners is None or not owners.isdisjoint(token.principals)) and _may_see(ctx, request, token)
    ]
    rows = []
    for token in found:
        row: Body = {
            "PrincipalType": token.owner.type,
            "PrincipalName": token.owner.name,
            "IssueTimestamp": token.issue_ms,
            "ExpiryTimestamp": token.expiry_ms,
            "MaxTimestamp": token.max_ms,
            "TokenId": token.token_id,
            "Hmac": tokens.hmac_of(token.token_id),
            "Renewers": [{"PrincipalType": one.type, "PrincipalName": one.name} for one in token.renewers],
        }
        if request.api_version >= FIRST_WITH_REQUESTER:
            row.update(
                TokenRequesterPrincipalType=token.requester.type, TokenRequesterPrincipalName=token.requester.name
            )
        rows.append(row)
    return {"ErrorCode": 0, "Tokens": rows}


def _may_see(ctx: ApiContext, request: RequestContext, token: DelegationToken) -> bool:
    return (
        Principal.parse(request.principal) in token.principals
        or ctx.auth.allows(request, checks.DESCRIBE_DELEGATION_TOKEN, token.token_id)
        or ctx.auth.allows(request, checks.DESCRIBE_DELEGATION_TOKEN_OWNER, str(token.owner))
    )
