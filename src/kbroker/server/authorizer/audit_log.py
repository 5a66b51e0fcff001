"""Writes refused requests to ``kafka.authorizer.logger``, in Kafka's words. Source: ``StandardAuthorizerData``."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.common.loggers import get_logger
from kbroker.common.security.acls import Operation, ResourceType
from kbroker.server.authorizer.authorizer import Authorizer
from kbroker.server.authorizer.denial import Denial

logger = get_logger("kafka.authorizer.logger")

#: So often at most; between two looks the first 64 different ones are kept, and the others counted.
LOOK_EVERY_MS = 1_000


class AuditLog:
    """Logs what the rules of ``authorizer`` have refused.

    Args: ``names`` of APIs by key. Threads: ``look`` on one at a time.
    """

    def __init__(self, authorizer: Authorizer, names: Mapping[int, str]) -> None:
        self._authorizer = authorizer
        self._names = names

    def look(self) -> None:
        """Write a line for each refused request since the last look; requests that are alike share one."""
        denials, left_out = self._authorizer.rules.take_denials()
        for denial in denials:
            logger.info("%s", self._line(denial))
        if left_out:
            logger.info("%d more requests are Denied", left_out)

    def _line(self, denial: Denial) -> str:
        kind, operation = ResourceType(denial.kind), Operation(denial.operation)
        decision = self._authorizer.explain(denial.principal, denial.host, operation, kind, denial.name)
        rule = "a rule that is removed" if decision.is_allowed else decision.rule
        return (
            f"Principal = {denial.principal} is Denied operation = {operation.name} from host = {denial.host} "
            f"on resource = {kind.title}:LITERAL:{denial.name} "
            f"for request = {self._names.get(denial.api_key, denial.api_key)} "
            f"with resourceRefCount = {denial.references} based on rule {rule}"
            + (f", {denial.times} times" if denial.times > 1 else "")
        )
