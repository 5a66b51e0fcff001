from typing import Final, TypedDict, final

TIMES: Final[tuple[str, ...]]
BOUNDS_MS: Final[tuple[float, ...]]
FETCH_CONSUMER: Final[int]
FETCH_FOLLOWER: Final[int]

class _Figures(TypedDict):
    count: int
    request_bytes: int
    response_bytes: int
    network_ns: int
    versions: dict[int, int]
    errors: dict[int | None, int]
    times: dict[str, tuple[float, list[int]]]

@final
class RequestMetrics:
    def __new__(cls) -> RequestMetrics: ...
    def snapshot(self) -> dict[int, _Figures]: ...

class RequestRecorder: ...
