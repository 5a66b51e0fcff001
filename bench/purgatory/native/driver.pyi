from typing import Any, Final

WHOLE: Final[str]
OUT_OF_MEMORY: Final[str]
OUT_OF_TIME: Final[str]

class StudyDesign: ...

class StudyRun:
    def __new__(
        cls,
        design: str | StudyDesign,
        n: int,
        rate: float = 0,
        p50: float = 20,
        p75: float = 60,
        timeout_ms: int = 200,
        size: int = 100,
        keys: int = 3,
        key_space: int = 100,
        fresh_keys: bool = False,
        purge_interval: int = 1000,
        seed: int = 1,
        memory_mb: int = 0,
        limit_s: float = 3600,
        tick_ms: int = 1,
        wheel_size: int = 20,
    ) -> StudyRun: ...
    def go(self) -> None: ...
    def figures(self) -> dict[str, Any]: ...

def rss_mb() -> float: ...
def trim() -> None: ...
def held(run: StudyRun) -> int: ...
