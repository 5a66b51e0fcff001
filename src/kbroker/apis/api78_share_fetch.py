"""ShareFetch: acquires records for a member of a share group, and acknowledges earlier ones (KIP-932)."""

from __future__ import annotations

import threading

from kbroker.apis.share_requests import (
    RENEW_VERSION,
    Acknowledged,
    acknowledge,
    by_topic,
    check_request,
    exists,
    failure,
    leaders,
    requested,
)
from kbroker.common.errors import Errors, KafkaError
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks
from kbroker.share.acquisition import AcquireMode
from kbroker.share.delayed_share_fetch import FetchedPartition, Results, ShareFetchParams
from kbroker.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, SharedPartition, ShareSession
from kbroker.share.share_partition_manager import SharePartitionManager

__all__ = ["failure", "handle"]

_ZERO_FOR_RENEWALS = (("MaxBytes", "maxBytes"), ("MinBytes", "minBytes"), ("MaxRecords", "maxRecords"),
                      ("MaxWaitMs", "maxWaitMs"))  # fmt: skip


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body | None:
    """Begin the acknowledgements and the fetch, and respond when both are complete. Raises: KafkaError."""
    check_request(ctx, body, request, checks.SHARE_FETCH_GROUP)
    is_renewal = request.api_version >= RENEW_VERSION and body["IsRenewAck"]
    wrong = [name for field, name in _ZERO_FOR_RENEWALS if body[field] != 0] if is_renewal else []
    if wrong:
        text = "".join(f"{name} must be set to 0, " for name in wrong) + "if isRenewAck is true."
        raise KafkaError(Errors.INVALID_REQUEST, text)
    manager = ctx.share_partitions
    try:
        _ShareFetchRequest(ctx, manager, body, request).run(is_renewal=is_renewal)
    except KafkaError as error:
        if error.error is not Errors.SHARE_SESSION_LIMIT_REACHED:
            raise
        refused = failure(body, error.error, request)  # sent later: clients repeat a refused request at once
        manager.lock_timer.add(max(0, body["MaxWaitMs"]), lambda: request.complete(refused))
    return None


class _ShareFetchRequest:
    """A ShareFetch, until its response. Threads: any, after ``run``."""

    def __init__(self, ctx: ApiContext, manager: SharePartitionManager, body: Body, request: RequestContext) -> None:
        self.ctx = ctx
        self.manager = manager
        self.body = body
        self.request = request
        self.group_id: str = body["GroupId"]
        self.member_id: str = body["MemberId"]
        self.epoch: int = body["ShareSessionEpoch"]
        self.session: ShareSession | None = None  # set unless the epoch is the first or the final one
        self._lock = threading.Lock()
        self._waits_for = 2
        self._acknowledged: Acknowledged = {}
        self._rows: list[tuple[SharedPartition, FetchedPartition]] = []

    def run(self, *, is_renewal: bool) -> None:
        """Check the session, acknowledge and fetch. Raises: KafkaError for the whole request."""
        body, request = self.body, self.request
        acknowledgements = requested(self.ctx, body["Topics"])
        has_acknowledgements = any(acknowledgements.values())
        partitions = self._partitions(list(acknowledgements), has_acknowledgements)
        names = [place.topic for place in [*partitions, *acknowledgements] if place.topic is not None]
        allowed = self.ctx.auth.allowed(request, checks.SHARE_FETCH, dict.fromkeys(names))
        if has_acknowledgements:
            acknowledge(
                self.ctx, body, request, acknowledgements, allowed, checks.SHARE_FETCH, self._acknowledgements_done
            )
        else:
            self._acknowledgements_done({})
        refused: list[tuple[SharedPartition, FetchedPartition]] = []
        good: list[SharedPartition] = []
        for place in () if is_renewal else partitions:
            error = Errors.NONE
            if place.topic is None:
                error = Errors.UNKNOWN_TOPIC_ID
            elif place.topic not in allowed:
                error = checks.SHARE_FETCH.error
            elif not exists(self.ctx, place):
                error = Errors.UNKNOWN_TOPIC_OR_PARTITION
            if error is Errors.NONE:
                good.append(place)
            else:
                refused.append((place, FetchedPartition(error)))
        if not good:
            self._fetch_done([], refused, {})
            return
        self.manager.fetch(
            self.group_id,
            self.member_id,
            self._params(),
            good,
            self.epoch,
            lambda results: self._fetch_done(good, refused, results),
            lambda: self.request.is_disconnected,
        )

    def _partitions(self, requested_places: list[SharedPartition], has_acknowledgements: bool) -> list[SharedPartition]:
        """Open or change the session; return the partitions to fetch. Raises: KafkaError."""
        sessions = self.manager.sessions
        if self.epoch == INITIAL_EPOCH:
            if has_acknowledgements:
                raise KafkaError(Errors.INVALID_REQUEST)
            connection_id = self.request.connection_id
            sessions.open(self.group_id, self.member_id, requested_places, connection_id)
            self.manager.watch_connection(connection_id)
            if self.request.is_disconnected:  # if it was closed before the watch, no event would end it
                self.manager.disconnected(connection_id)
            return requested_places
        forgotten = [
            (topic["TopicId"], index) for topic in self.body["ForgottenTopicsData"] for index in topic["Partitions"]
        ]
        session = sessions.advance(self.group_id, self.member_id, self.epoch, requested_places, forgotten)
        if self.epoch == FINAL_EPOCH:
            return []
        self.session = session
        return list(session.partitions.values())

    def _params(self) -> ShareFetchParams:
        body, ctx = self.body, self.ctx
        quota = ctx.quotas.fetch.max_value_in_window(self.request.user, self.request.client_id)
        max_bytes = int(min(body["MaxBytes"], ctx.config.integer("fetch.max.bytes"), quota))
        mode = body["ShareAcquireMode"] if self.request.api_version >= RENEW_VERSION else AcquireMode.BATCH_OPTIMIZED
        try:
            mode = AcquireMode(mode)
        except ValueError:
            raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, f"Unknown share acquire mode id: {mode}") from None
        return ShareFetchParams(
            body["MaxWaitMs"],
            min(body["MinBytes"], max_bytes),
            max_bytes,
            body["MaxRecords"],
            body["BatchSize"],
            mode,
            self.manager.configs(self.group_id).is_read_committed,
        )

    def _acknowledgements_done(self, outcomes: Acknowledged) -> None:
        self._acknowledged = outcomes
        self._one_done()

    def _fetch_done(
        self,
        fetched: list[SharedPartition],
        refused: list[tuple[SharedPartition, FetchedPartition]],
        results: Results,
    ) -> None:
        by_place = {(key.topic_id, key.partition): result for key, result in results.items()}
        found = [(place, by_place[place.place]) for place in fetched if place.place in by_place]
        self._rows = [*found, *refused]
        self._one_done()

    def _one_done(self) -> None:
        with self._lock:
            self._waits_for -= 1
            is_last = self._waits_for == 0
        if is_last:
            self._respond()

    def _respond(self) -> None:
        """Respond with the fetched partitions, and with the outcomes of acknowledgements."""
        if self.epoch == FINAL_EPOCH:
            self.manager.release_member(self.group_id, self.member_id)  # the final request waits for no fetch
        session = self.session
        if session is not None:
            if not self.manager.sessions.is_next(session, self.epoch):
                self.request.complete(failure(self.body, Errors.INVALID_SHARE_SESSION_EPOCH, self.request))
                return
            self._rows = [
                (place, one)
                for place, one in self._rows
                if self.manager.sessions.must_respond(
                    session, place.place, has_records=bool(one.records), is_error=one.error is not Errors.NONE
                )
            ]
        rows = {place: _row(place, one) for place, one in self._rows}
        for place, error in self._acknowledged.items():
            row = rows.setdefault(place, _row(place, FetchedPartition()))
            if error is not None:
                row["AcknowledgeErrorCode"], row["AcknowledgeErrorMessage"] = int(error.error), error.message or None
        body = {
            "AcquisitionLockTimeoutMs": self.manager.configs(self.group_id).record_lock_duration_ms,
            "NodeEndpoints": leaders(self.ctx, self.request, rows.items()),
            "Responses": by_topic(rows.items()),
        }
        throttle_ms = self._charge(sum(len(one.records) for _, one in self._rows))
        if throttle_ms > 0:
            body["ThrottleTimeMs"] = throttle_ms
        self.request.complete(body)

    def _charge(self, size_bytes: int) -> int:
        """Charge the records to the quota of fetches; return the throttle time.

        Kafka withholds the records of a throttled response, whose locks then expire. Here they are sent, so that no
        delivery is lost, and the connection is throttled.
        """
        user, client_id = self.request.user, self.request.client_id
        self.ctx.quotas.shadows[1].record_no_throttle(user, client_id, size_bytes)
        return self.ctx.quotas.fetch.record_and_get_throttle(user, client_id, size_bytes)


def _row(place: SharedPartition, one: FetchedPartition) -> Body:
    return {
        "PartitionIndex": place.partition,
        "ErrorCode": int(one.error),
        "ErrorMessage": one.message,
        "Records": one.records,
        "AcquiredRecords": [
            {"FirstOffset": first, "LastOffset": last, "DeliveryCount": count} for first, last, count in one.acquired
        ],
    }
