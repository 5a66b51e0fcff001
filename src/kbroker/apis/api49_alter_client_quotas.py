"""AlterClientQuotas: quotas of users, clients and addresses, set and removed at run time."""

from __future__ import annotations

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_text import body_as_java_reads
from kbroker.common.quotas import QuotaEntity
from kbroker.quota.entity_rules import Alteration, QuotaOp
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import error_fields
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Change each entity separately, or only check it; an invalid entry is refused as a whole.

    The changes are in force, and survive a restart, when this returns. The response has a duplicate entity once.
    """
    ctx.auth.require(request, checks.ALTER_CLIENT_QUOTAS)
    alterations = [
        Alteration(_entity(row), [QuotaOp(op["Key"], None if op["Remove"] else op["Value"]) for op in row["Ops"]])
        for row in body["Entries"]
    ]
    results = ctx.quota_entities.alter(alterations, body["ValidateOnly"])
    return {"Entries": [_response(entity, refusal) for entity, refusal in results.items()]}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return the entity of every entry with the same error."""
    return {"Entries": [_response(_entity(row), KafkaError(error)) for row in body["Entries"]]}


def _entity(row: Body) -> QuotaEntity:
    """Return the entity of a request. The last name of a duplicate entity type counts, as in Kafka's map."""
    return QuotaEntity.of({part["EntityType"]: body_as_java_reads(part["EntityName"]) for part in row["Entity"]})


def _response(entity: QuotaEntity, refusal: KafkaError | None) -> Body:
    parts = [{"EntityType": kind, "EntityName": name} for kind, name in entity.parts_by_type]
    return {**error_fields(refusal), "Entity": parts}
