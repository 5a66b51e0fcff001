def drawn(
    n: int,
    rate: float,
    p50: float,
    p75: float,
    timeout_ms: int = 200,
    seed: int = 1,
    show: int = 10,
) -> tuple[list[int], list[int], int]: ...
