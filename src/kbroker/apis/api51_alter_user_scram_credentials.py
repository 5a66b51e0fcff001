"""AlterUserScramCredentials: sets and removes SCRAM users; the client has salted the passwords.

Source: ``ScramControlManager.alterCredentials``.
"""

from __future__ import annotations

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_text import body_as_java_reads
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import error_fields
from kbroker.security.authorizer import checks
from kbroker.security.credentials import Deletion, Upsertion


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Apply the valid changes of each user, and report the others."""
    ctx.auth.require(request, checks.ALTER_USER_SCRAM_CREDENTIALS)
    body = body_as_java_reads(body)  # names are stored
    deletions = [Deletion(one["Name"], one["Mechanism"]) for one in body["Deletions"]]
    upsertions = [
        Upsertion(one["Name"], one["Mechanism"], one["Iterations"], bytes(one["Salt"]), bytes(one["SaltedPassword"]))
        for one in body["Upsertions"]
    ]
    outcome = ctx.credentials.alter(deletions, upsertions)
    return {"Results": [{"User": user, **error_fields(error)} for user, error in outcome.items()]}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every named user with the same error."""
    names = [one["Name"] for one in (*body["Deletions"], *body["Upsertions"])]
    return {"Results": [{"User": name, **error_fields(KafkaError(error))} for name in dict.fromkeys(names)]}
