"""DescribeUserScramCredentials: the users with SCRAM credentials, never the credentials themselves.

Source: ``ScramImage.describe``.
"""

from __future__ import annotations

from collections import Counter

from kbroker.common.errors import Errors
from kbroker.common.java.java_hash import hash_map_order
from kbroker.common.java.java_text import replace_invalid_utf8
from kbroker.common.security import scram
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

_TWICE = "Cannot describe SCRAM credentials for the same user twice in a single request: "
_UNKNOWN = "Attempt to describe a user credential that does not exist: "


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe the named users, or all of them."""
    ctx.auth.require(request, checks.DESCRIBE_USER_SCRAM_CREDENTIALS)
    known = ctx.credentials.users()
    asked = Counter([replace_invalid_utf8(user["Name"]) for user in body["Users"] or ()] or known.keys())
    results = []
    for name in hash_map_order(asked):
        result: Body = {"User": name, "ErrorCode": 0, "ErrorMessage": "", "CredentialInfos": []}
        if asked[name] > 1:
            result.update(ErrorCode=int(Errors.DUPLICATE_RESOURCE), ErrorMessage=_TWICE + name)
        elif name not in known:
            result.update(ErrorCode=int(Errors.RESOURCE_NOT_FOUND), ErrorMessage=_UNKNOWN + name)
        else:
            result["CredentialInfos"] = [
                {"Mechanism": scram.MECHANISMS[mechanism].number, "Iterations": iterations}
                for mechanism, iterations in known[name].items()
            ]
        results.append(result)
    return {"ErrorCode": 0, "ErrorMessage": "", "Results": results}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return the error for the whole request; each user has its error without the name, as in Kafka."""
    what = {"ErrorCode": int(error), "ErrorMessage": error.message}
    results = [{**what, "User": "", "CredentialInfos": []} for _ in body["Users"] or ()]
    return {**what, "Results": results}
