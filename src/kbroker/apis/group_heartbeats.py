"""The parts of heartbeats that the newer kinds of groups have in common: checks of texts, errors, and fields."""

from __future__ import annotations

from typing import Protocol

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_values import trim
from kbroker.requests.context import Body
from kbroker.requests.rows import error_fields


class _Result(Protocol):
    """Result of a heartbeat of any kind."""

    @property
    def member_id(self) -> str: ...
    @property
    def member_epoch(self) -> int: ...
    @property
    def heartbeat_interval_ms(self) -> int: ...


def accepted(result: _Result) -> Body:
    """Return the fields of a response that do not depend on the kind of the group."""
    return {
        **error_fields(None),
        "MemberId": result.member_id,
        "MemberEpoch": result.member_epoch,
        "HeartbeatIntervalMs": result.heartbeat_interval_ms,
    }


def check_texts(body: Body, *names: str) -> None:
    """Refuse empty texts. Raises: KafkaError INVALID_REQUEST."""
    for name in names:
        if body[name] is not None and not trim(body[name]):
            raise invalid(f"{name} can't be empty.")


def invalid(text: str) -> KafkaError:
    """Return the error for a heartbeat with a field that is not valid."""
    return KafkaError(Errors.INVALID_REQUEST, text)
