"""Quotas of a member, which the controllers store, with the shadow quotas in the metadata."""

from pathlib import Path

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.common.quotas import CLIENT_ID, QuotaEntity
from kbroker.metrics.registry import Metrics
from kbroker.quota._client_quotas import ClientQuotaManagers
from kbroker.quota.entity_rules import Alteration, QuotaOp
from kbroker.quota.entity_store import QuotaEntityStore
from tests.support import metadata_images as rows
from tests.support.fake_quorum import FakeQuorum
from tests.support.metadata_images import Row
from tests.support.raft_follower import RaftFollower

APP, KEY = QuotaEntity.of({CLIENT_ID: "app"}), "shadow.producer_byte_rate"


def test_shadows_of_the_metadata_are_tried(tmp_path: Path) -> None:
    """Shadow quotas follow the metadata at and after the start; a member refuses to store a quota."""
    quorum, clock = FakeQuorum(), VirtualClock()
    names: dict[str, str | None] = {CLIENT_ID: "app"}
    quorum.append(rows.feature("metadata.version", 30), rows.quota(KEY, 1000.0, names))
    quorum.commit()
    managers = ClientQuotaManagers(clock, Metrics(clock=clock, expires=True))
    enforced, shadow = managers.enforced[0], managers.shadows[0]
    with RaftFollower(tmp_path, quorum) as follower:
        follower.catch_up()
        store = QuotaEntityStore(follower.metadata)
        store.on_change(lambda entity, key, value: managers.update(None, entity.names[CLIENT_ID], key, value))
        store.load()
        follower.metadata.publishers.append(store)
        assert shadow.resolve("u", "app").limit == 1000.0
        assert shadow.record_and_get_throttle("u", "app", 12_000) == 2000
        assert not enforced.is_enabled

        def change(*records: Row) -> None:
            quorum.append(*records)
            quorum.commit()
            follower.catch_up()

        change(rows.quota(KEY, 500.0, names))
        follower.await_image(lambda _: shadow.resolve("u", "app").limit == 500.0)
        change(rows.quota("producer_byte_rate", 400.0, names), rows.quota(KEY, None, names))
        follower.await_image(lambda _: enforced.resolve("u", "app").limit == 400.0 and not shadow.is_enabled)
        assert store.find({CLIENT_ID: "app"}, (), True) == [(APP, {"producer_byte_rate": 400.0})]
        (refusal,) = store.alter([Alteration(APP, [QuotaOp(KEY, 1.0)])]).values()
        assert refusal is not None
        assert refusal.error is Errors.NOT_CONTROLLER
