"""DescribeClientQuotas: the quotas of the entities that match a filter."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_text import body_as_java_reads
from kbroker.common.quotas import CLIENT_ID, ENTITY_TYPES, IP, USER
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import error_fields
from kbroker.security.authorizer import checks

EXACT, DEFAULT, ANY = 0, 1, 2


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """List the entities that match every component of the filter, or all entities without components.

    A strict filter matches no entity with other parts. Source: ``ClientQuotasImage.describe``.
    """
    ctx.auth.require(request, checks.DESCRIBE_CLIENT_QUOTAS)
    try:
        exact, present = _filter(body["Components"])
    except KafkaError as refusal:
        return {**error_fields(refusal), "Entries": None}
    entries = [
        {
            "Entity": [{"EntityType": kind, "EntityName": name} for kind, name in entity.parts_by_type],
            "Values": [{"Key": key, "Value": value} for key, value in values.items()],
        }
        for entity, values in ctx.quota_entities.find(exact, present, body["Strict"])
    ]
    return {"ErrorCode": 0, "ErrorMessage": "", "Entries": entries}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return a response with the error, without entries."""
    return {**error_fields(KafkaError(error)), "Entries": None}


def _filter(components: Iterable[Body]) -> tuple[dict[str, str | None], set[str]]:
    """Return the required names by type (None: the default), and types required with any name. Raises: KafkaError."""
    exact: dict[str, str | None] = {}
    present: set[str] = set()
    for component in components:
        kind, how, name = component["EntityType"], component["MatchType"], body_as_java_reads(component["Match"])
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in exact or kind in present:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in ENTITY_TYPES:
            raise KafkaError(Errors.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if how == EXACT:
            if name is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            exact[kind] = name
        elif how == DEFAULT:
            if name is not None:
                raise _invalid("Request specified MATCH_TYPE_DEFAULT, but also specified a match string.")
            exact[kind] = None
        elif how == ANY:
            if name is not None:
                raise _invalid("Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.")
            present.add(kind)
        else:
            raise _invalid(f"Unknown match type {how}")
    kinds = {*exact, *present}
    if IP in kinds and kinds & {USER, CLIENT_ID}:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component."
        )
    return exact, present


def _invalid(text: str) -> KafkaError:
    return KafkaError(Errors.INVALID_REQUEST, text)
