"""Check, limit and failure shared by requests about share groups."""

from __future__ import annotations

from kbroker.common.errors import KafkaError
from kbroker.common.feature_versions import SHARE_VERSION
from kbroker.requests.context import ApiContext, Body
from kbroker.requests.rows import error_fields

MAX_MEMBER_ID_LENGTH = 36  # of a UUID as text


def are_enabled(ctx: ApiContext) -> bool:
    """Return whether the cluster has share groups; if not, the request gets UNSUPPORTED_VERSION."""
    return ctx.features.level(SHARE_VERSION) > 0


def refused_group(error: KafkaError) -> Body:
    """Return the error of a request about the offsets of one group."""
    return {**error_fields(error), "Responses": []}
