"""One HTTP GET, limited in time and size; redirects are not followed, to protect credentials."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Mapping
from ssl import SSLContext
from typing import NamedTuple

_CHUNK_BYTES = 1 << 16


class HttpFailure(Exception):
    """No response, or one that is too long; the message is one line without the URL."""


class Response(NamedTuple):
    """Status, headers with names in lower case, and body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def http_get(
    scheme: str,
    host: str,
    port: int | None,
    target: str,
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    max_bytes: int,
    context: SSLContext | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Response:
    """Return the response to GET ``target``, on its own connection.

    Args: ``timeout_s``: for the whole request; ``max_bytes``: of the body.
    Raises: HttpFailure.
    """
    deadline_s = clock() + timeout_s
    connection = (
        http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
        if scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=timeout_s)
    )
    try:
        connection.request("GET", target, headers=dict(headers))
        body = bytearray()
        with connection.getresponse() as response:
            while chunk := response.read1(_CHUNK_BYTES):
                body += chunk
                if len(body) > max_bytes:
                    raise HttpFailure(f"expected at most {max_bytes} bytes, got more")
                if clock() > deadline_s:
                    raise TimeoutError
        return Response(response.status, {name.lower(): value for name, value in response.getheaders()}, bytes(body))
    except TimeoutError:
        raise HttpFailure(f"no response within {timeout_s:g} s") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise HttpFailure(getattr(error, "strerror", None) or str(error) or type(error).__name__) from None
    finally:
        connection.close()
