"""Error codes that calls raise."""

from collections.abc import Callable
from typing import Any

from kbroker.common.errors import Errors, KafkaError


def error_of(call: Callable[..., object], *args: Any, **how: Any) -> Errors:
    """Return the error that a call raises, or NONE if it succeeds."""
    try:
        call(*args, **how)
    except KafkaError as error:
        return error.error
    return Errors.NONE
