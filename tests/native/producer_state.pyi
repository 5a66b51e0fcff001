import os
from typing import TypedDict, final, type_check_only

@type_check_only
class ProducerFacts(TypedDict):
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp_ms: int
    last_sequence: int
    last_offset: int
    current_txn_first_offset: int
    batch_count: int

@final
class ProducerStateManager:
    def __new__(cls) -> ProducerStateManager: ...
    def append(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        base_offset: int,
        *,
        record_count: int = 1,
        timestamp_ms: int = 0,
        transactional: bool = False,
        from_client: bool = True,
        guard: int = -1,
    ) -> tuple[int, int, int]: ...
    def verify(
        self, producer_id: int, producer_epoch: int, base_sequence: int, *, bumps_epochs: bool = False, now_ms: int = 0
    ) -> tuple[int, int]: ...
    def has_late_transaction(self, now_ms: int, max_timeout_ms: int) -> bool: ...
    @property
    def verifications(self) -> int: ...
    def end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        offset: int,
        *,
        commit: bool,
        coordinator_epoch: int = 0,
        timestamp_ms: int = 0,
        transaction_version: int = 0,
    ) -> tuple[int, tuple[int, int, int, int] | None]: ...
    def set_high_watermark(self, offset: int) -> None: ...
    @property
    def first_unstable_offset(self) -> int | None: ...
    def expire(self, now_ms: int, expiration_ms: int) -> None: ...
    def clear(self) -> None: ...
    def __len__(self) -> int: ...
    def describe(self) -> list[ProducerFacts]: ...
    def write_snapshot(self, path: str | os.PathLike[str]) -> None: ...
    def load_snapshot(
        self, path: str | os.PathLike[str], *, now_ms: int = 0, expiration_ms: int = 86_400_000
    ) -> None: ...
