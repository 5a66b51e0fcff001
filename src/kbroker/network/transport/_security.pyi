import ssl
from collections.abc import Callable
from typing import final

@final
class TlsServer:
    context: ssl.SSLContext
    def __new__(
        cls,
        context: ssl.SSLContext,
        principal_of: Callable[[bytes | None], str] | None = None,
        on_failure: Callable[[str, int, BaseException, bool], None] | None = None,
        on_refusal: Callable[[BaseException], None] | None = None,
    ) -> TlsServer: ...
