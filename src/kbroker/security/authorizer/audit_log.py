"""Log of decisions in ``kafka.authorizer.logger``, in Kafka's words: denied ones at INFO, allowed ones at DEBUG.

Source: ``StandardAuthorizerData.logAuditMessage``.
"""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.common.loggers import get_logger, log_from_info, logs_debug
from kbroker.common.printable import printable
from kbroker.common.security.acls import Operation, ResourceType
from kbroker.security.authorizer.authorizer import Authorizer
from kbroker.security.authorizer.decision_note import DecisionNote

NAME = "kafka.authorizer.logger"
logger = get_logger(NAME)

#: Interval of ``look``; in between the first 64 distinct decisions are kept, and the others counted.
LOOK_EVERY_MS = 1_000
#: Lines about denied requests: a burst, and then a limit per ``look``, so that a client cannot fill a disk.
LINES_AT_ONCE, LINES_A_LOOK = 64, 4


class AuditLog:
    """Log of the decisions of ``authorizer``.

    Args: ``names``: of the APIs, by key. Threads: ``look`` on one at a time.
    """

    def __init__(self, authorizer: Authorizer, names: Mapping[int, str]) -> None:
        self._authorizer = authorizer
        self._names = names
        self._lines = LINES_AT_ONCE
        log_from_info(NAME)

    def look(self) -> None:
        """Write a line for each decision since the last call; equal ones share a line."""
        rules = self._authorizer.rules
        denied, left_out = rules.take_notes(False)
        for note in denied[: self._lines]:
            logger.info("%s", self._line(note, "Denied"))
        left_out += sum(note.times for note in denied[self._lines :])
        if left_out:
            logger.info("%d more requests are Denied", left_out)
        self._lines = min(self._lines - min(self._lines, len(denied)) + LINES_A_LOOK, LINES_AT_ONCE)
        if rules.notes_allowed:
            allowed, left_out = rules.take_notes(True)
            for note in allowed:
                logger.debug("%s", self._line(note, "Allowed"))
            if left_out:
                logger.debug("%d more requests are Allowed", left_out)
        rules.notes_allowed = logs_debug(NAME)

    def _line(self, note: DecisionNote, word: str) -> str:
        kind, operation = ResourceType(note.kind), Operation(note.operation)
        if note.is_cut:  # the rule is about a longer name
            rule = "a rule about the whole name"
        else:
            decision = self._authorizer.explain(note.principal, note.host, operation, kind, note.name)
            rule = "a rule that has changed" if decision.is_allowed != (word == "Allowed") else decision.rule
        line = (
            f"Principal = {note.principal} is {word} operation = {operation.name} from host = {note.host} "
            f"on resource = {kind.title}:LITERAL:{note.name} "
            f"for request = {self._names.get(note.api_key, note.api_key)} "
            f"with resourceRefCount = {note.references} based on rule {rule}"
        )
        return printable(line) + (f", {note.times} times" if note.times > 1 else "")
