"""Error codes that calls raise, and errors in responses."""

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from kbroker.common.errors import Errors, KafkaError


def error_of(call: Callable[..., object], *args: Any, **how: Any) -> Errors:
    """Return the error that a call raises, or NONE if it succeeds."""
    try:
        call(*args, **how)
    except KafkaError as error:
        return error.error
    return Errors.NONE


def errors_in(response: Any) -> Iterator[dict[str, Any]]:
    """Yield the structures of a response that have an error code, at any depth."""
    if isinstance(response, dict) and response.get("ErrorCode"):
        yield response
    for part in response.values() if isinstance(response, dict) else response if isinstance(response, list) else ():
        yield from errors_in(part)


def raising(error: BaseException | type[BaseException]) -> Callable[..., NoReturn]:
    """Return a function that accepts all arguments and raises the error."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail
