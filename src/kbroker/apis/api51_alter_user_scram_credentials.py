"""AlterUserScramCredentials: sets and removes SCRAM users; the client has salted the passwords.

Source: ``ScramControlManager.alterCredentials``.
"""

from __future__ import annotations

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_hash import hash_map_order
from kbroker.common.java.java_text import body_as_java_reads
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import error_fields
from kbroker.security.authorizer import checks
from kbroker.security.credentials import Deletion, Upsertion


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Apply the valid changes of each user, and report the others, in the order of Kafka's response."""
    ctx.auth.require(request, checks.ALTER_USER_SCRAM_CREDENTIALS)
    body = body_as_java_reads(body)  # names are stored
    deletions = [Deletion(one["Name"], one["Mechanism"]) for one in body["Deletions"]]
    upsertions = [
        Upsertion(one["Name"], one["Mechanism"], one["Iterations"], bytes(one["Salt"]), bytes(one["SaltedPassword"]))
        for one in body["Upsertions"]
    ]
    outcome = ctx.credentials.alter(deletions, upsertions)
    deleted = {one.user for one in deletions}
    kinds = {user: 2 if error is not None else user not in deleted for user, error in outcome.items()}
    users = sorted(hash_map_order(outcome), key=kinds.__getitem__)
    return {"Results": [{"User": user, **_fields(outcome[user])} for user in users]}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every named user with the same error."""
    names = [one["Name"] for one in (*body["Deletions"], *body["Upsertions"])]
    return {"Results": [{"User": name, **_fields(KafkaError(error))} for name in hash_map_order(dict.fromkeys(names))]}


def _fields(error: KafkaError | None) -> Body:
    fields = error_fields(error)
    if error is not None and error.error is Errors.UNKNOWN_SERVER_ERROR:
        fields["ErrorMessage"] = None
    return fields
