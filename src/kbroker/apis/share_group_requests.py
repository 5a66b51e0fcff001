"""The check that requests about share groups have in common."""

from __future__ import annotations

from kbroker.common.feature_versions import SHARE_VERSION
from kbroker.requests.context import ApiContext


def are_enabled(ctx: ApiContext) -> bool:
    """Return whether the cluster has share groups; other requests get UNSUPPORTED_VERSION."""
    return ctx.features.level(SHARE_VERSION) > 0
