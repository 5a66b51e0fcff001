"""`QuotaClient` for asyncio."""

from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import TypeVar

from kbroker.client.client_thread import ClientThread
from kbroker.client.quota_changes import Changes, Difference, Values
from kbroker.client.quota_client import ANONYMOUS, CLIENT_ID, Applied, QuotaClient
from kbroker.client.quota_resolution import ResolvedQuota
from kbroker.common.errors import KafkaError
from kbroker.common.quotas import QuotaEntity

T = TypeVar("T")


class AsyncQuotaClient:
    """The client quotas of one cluster, asked for by coroutines: each method is the one of `QuotaClient`, awaited.

    The requests are sent one after the other, by one thread and over one connection that no other client has. A call
    that is cancelled ends at once; whether an `alter` or `apply` that was cancelled has changed something is not known:
    look, or do it again.

    Args: as `QuotaClient`, without a Cluster; nothing is connected before the first call, or ``async with``.
    Raises: ValueError for an address or a property that is wrong.
    Threads: that of one event loop.
    """

    def __init__(
        self,
        bootstrap: str,
        properties: Mapping[str, str] | None = None,
        *,
        client_id: str = CLIENT_ID,
        connect_timeout_s: float = 10.0,
        request_timeout_s: float = 30.0,
        retry_timeout_s: float = 30.0,
    ) -> None:
        self._thread = ClientThread(
            bootstrap,
            properties,
            client_id=client_id,
            connect_timeout_s=connect_timeout_s,
            request_timeout_s=request_timeout_s,
            retry_timeout_s=retry_timeout_s,
        )

    async def __aenter__(self) -> "AsyncQuotaClient":
        try:
            await self._thread.run(lambda cluster: None)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection and end the thread. Repeated, it does nothing."""
        await self._thread.close()

    async def describe(
        self, exact: Mapping[str, str | None] | None = None, present: Iterable[str] = (), *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        """As `QuotaClient.describe`."""
        return await self._run(lambda client: client.describe(exact, present, strict=strict))

    async def of(self, entity: QuotaEntity) -> dict[str, float]:
        """As `QuotaClient.of`."""
        return await self._run(lambda client: client.of(entity))

    async def alter(
        self, changes: Mapping[QuotaEntity, Changes], *, validate_only: bool = False
    ) -> dict[QuotaEntity, KafkaError | None]:
        """As `QuotaClient.alter`."""
        return await self._run(lambda client: client.alter(changes, validate_only=validate_only))

    async def resolve(
        self, user: str = ANONYMOUS, client_id: str = "", address: str | None = None
    ) -> list[ResolvedQuota]:
        """As `QuotaClient.resolve`."""
        return await self._run(lambda client: client.resolve(user, client_id, address))

    async def diff(self, wanted: Mapping[QuotaEntity, Values], *, prune: bool = False) -> list[Difference]:
        """As `QuotaClient.diff`."""
        return await self._run(lambda client: client.diff(wanted, prune=prune))

    async def apply(
        self, wanted: Mapping[QuotaEntity, Values], *, prune: bool = False, validate_only: bool = False
    ) -> Applied:
        """As `QuotaClient.apply`."""
        return await self._run(lambda client: client.apply(wanted, prune=prune, validate_only=validate_only))

    async def promote_shadows(
        self, entity: QuotaEntity | None = None, keys: Collection[str] = (), *, validate_only: bool = False
    ) -> Applied:
        """As `QuotaClient.promote_shadows`."""
        return await self._run(lambda quotas: quotas.promote_shadows(entity, keys, validate_only=validate_only))

    async def drop_shadows(
        self, entity: QuotaEntity | None = None, keys: Collection[str] = (), *, validate_only: bool = False
    ) -> Applied:
        """As `QuotaClient.drop_shadows`."""
        return await self._run(lambda quotas: quotas.drop_shadows(entity, keys, validate_only=validate_only))

    async def broker_count(self) -> int:
        """As `QuotaClient.broker_count`."""
        return await self._run(lambda client: client.broker_count())

    async def _run(self, call: Callable[[QuotaClient], T]) -> T:
        return await self._thread.run(lambda cluster: call(QuotaClient(cluster)))
