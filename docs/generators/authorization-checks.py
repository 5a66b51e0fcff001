"""Write docs/authorization-checks.md from the checks: ``python docs/generators/authorization-checks.py [--check]``."""

from __future__ import annotations

import sys

from generated_page import write_page

from kbroker.common.errors import Errors
from kbroker.handlers.api_table import KafkaApis
from kbroker.protocol import codec
from kbroker.security.authorizer.checks import Check, all_checks

_HEAD = """# The check of each request

`python docs/generators/authorization-checks.py` generates this page from `security/authorizer/checks.py`; do not edit
it here. [Authorization](authorization.md) defines the rules.

The rows of an API are in the order of its checks. Error *none* means that a refused resource is omitted from the
response, or that the next check decides. The name of a Cluster is `kafka-cluster`. ApiVersions, SaslHandshake and
SaslAuthenticate have no checks.

| API | Resource | Operation | Error | Checked for |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the whole page, with the served APIs."""
    served = KafkaApis().entries
    rows = [_row(check) for check in sorted(all_checks(), key=lambda check: check.api) if check.api in served]
    return _HEAD + "\n".join(rows) + "\n"


def _row(check: Check) -> str:
    error = "none" if check.error is Errors.NONE else check.error.name
    words = (codec.api(check.api).name, check.kind.title, check.operation.name, error, check.covers)
    return f"| {' | '.join(words)} |"


if __name__ == "__main__":
    sys.exit(write_page("authorization-checks.md", page, sys.argv[1:]))
