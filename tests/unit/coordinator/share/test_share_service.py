"""The share coordinator in its broker: the periodic work."""

import pytest

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.topic_names import SHARE_STATE_TOPIC, TopicPartition
from kbroker.coordinator.share.persister import StateChange
from kbroker.coordinator.share.share_coordinator import PRUNE_INTERVAL_MS, ShareSettings
from kbroker.coordinator.share.share_service import ShareService
from kbroker.log.scheduler import Scheduler
from tests.support.server import Bench
from tests.support.share_groups import KEY, Share


def test_a_start_that_a_deletion_moved_is_written(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion of replaced records writes the new log start; one that deletes nothing writes nothing."""
    written: list[list[TopicPartition]] = []
    monkeypatch.setattr(bench.ctx.topics, "write_log_starts", lambda keys: written.append(list(keys)))
    share = Share(ShareSettings(updates_per_snapshot=1))
    scheduler = Scheduler(share.clock)
    service = ShareService(BrokerConfig(), share.clock, bench.ctx.topics, scheduler)
    service.coordinator = share.coordinator
    service.start()
    share.clock.advance_ms(PRUNE_INTERVAL_MS)
    scheduler.run_due()
    assert written == []
    share.coordinator.initialize(KEY, 0, 0)
    for offset in range(4):
        share.coordinator.write(KEY, StateChange(0, 0, offset, 0, []))
    share.clock.advance_ms(PRUNE_INTERVAL_MS)
    scheduler.run_due()
    assert written == [[(SHARE_STATE_TOPIC, shard.index) for shard in share.coordinator.runtime.shards]]
    assert share.coordinator.runtime.find(KEY.text).log.log_start_offset > 0
    scheduler.close()
