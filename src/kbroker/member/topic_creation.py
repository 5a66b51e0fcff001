"""Automatic creation of topics by the active controller.

Source: ``DefaultAutoTopicCreationManager``, ``KRaftTopicCreator``.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.errors import Errors, ProtocolError
from kbroker.common.limited_log import RepeatedFailures, cause_of
from kbroker.common.loggers import get_logger
from kbroker.member.client import Client
from kbroker.member.controller_channel import ControllerChannel, Outcome
from kbroker.member.forwarding import ForwardedResponse, ForwardingManager
from kbroker.metadata.topic_rules import SETTING_PREFIXES, automatic_topic
from kbroker.protocol import codec

logger = get_logger(__name__)

CREATE_TOPICS = 19
_DEFAULT_FACTOR = 3  # replication factor of an internal topic, unless it is set


class TopicCreation:
    """Requests to create topics, at most one at a time for each topic. Threads: any."""

    def __init__(
        self, config: BrokerConfig, channel: ControllerChannel, forwarding: ForwardingManager, clock: BaseClock
    ) -> None:
        self._config = config
        self._channel = channel
        self._forwarding = forwarding
        self._failures = RepeatedFailures(clock)
        self._lock = threading.Lock()
        self._requested: set[str] = set()

    def create_for_broker(self, name: str) -> None:
        """Request a topic that this broker needs, with its own principal. The response is not awaited."""
        if names := self._claim([name]):
            version = codec.api(CREATE_TOPICS).request_versions[1]
            self._channel.send(
                CREATE_TOPICS, self._body(names), lambda outcome: self._end(names, outcome), version=version
            )

    def create(self, names: Iterable[str], client: Client, client_id: str, correlation_id: int) -> None:
        """Request topics for a client, with its principal, except those requested already. No response is awaited."""
        if not (claimed := self._claim(names)):
            return
        low, high = codec.api(CREATE_TOPICS).request_versions
        version = max(low, min(high, self._channel.versions.get(CREATE_TOPICS, (low, high))[1]))

        def end(response: ForwardedResponse) -> None:
            body: codec.Body = {"Topics": [{"Name": name, "ErrorCode": int(response.error)} for name in claimed]}
            if response.error is Errors.NONE:
                try:
                    body = codec.decode_response_frame(CREATE_TOPICS, version, response.data)[1]
                except ProtocolError as error:
                    logger.error("the controller's response to CreateTopics is malformed: %s", error)
            self._finish(claimed, body)

        try:
            request = codec.encode_request_header(CREATE_TOPICS, version, correlation_id, client_id)
            request += codec.encode_request(CREATE_TOPICS, version, self._body(claimed))
            self._forwarding.forward(request, client, end)
        except BaseException:
            self._finish(claimed, {})  # otherwise no later request could create them
            raise

    def _claim(self, names: Iterable[str]) -> list[str]:
        """Mark topics as requested; return those that were not."""
        with self._lock:
            fresh = [name for name in dict.fromkeys(names) if name not in self._requested]
            self._requested.update(fresh)
        return fresh

    def _end(self, names: Collection[str], outcome: Outcome) -> None:
        if outcome.error is not None:
            self._report("%s cannot be created: %s", ", ".join(names), outcome.error.message)
        self._finish(names, outcome.body)

    def _finish(self, names: Collection[str], body: codec.Body) -> None:
        with self._lock:
            self._requested.difference_update(names)
        for row in body.get("Topics", ()):
            if row["ErrorCode"] not in (Errors.NONE, Errors.TOPIC_ALREADY_EXISTS):
                reason = row.get("ErrorMessage") or f"error {row['ErrorCode']}"
                self._report("topic %s cannot be created automatically: %s", row["Name"], reason)

    def _report(self, message: str, names: str, reason: str) -> None:
        """Log a failure, with limits: clients request their topics several times a second."""
        self._failures.log((names, cause_of(reason)), logger.warning, message, names, reason)

    def _body(self, names: Iterable[str]) -> codec.Body:
        return {
            "Topics": [self._topic(name) for name in names],
            "timeoutMs": self._config.integer("request.timeout.ms"),
            "validateOnly": False,
        }

    def _topic(self, name: str) -> codec.Body:
        """Return the row of a topic; -1 leaves a number to the controller."""
        config = self._config

        def if_set(key: str, otherwise: int) -> int:
            return config.integer(key) if config.is_set(key) else otherwise

        topic = automatic_topic(name, config)
        if name in SETTING_PREFIXES:
            partitions, factor = (
                topic.num_partitions,
                if_set(f"{SETTING_PREFIXES[name]}.replication.factor", _DEFAULT_FACTOR),
            )
        else:
            partitions, factor = if_set("num.partitions", -1), if_set("default.replication.factor", -1)
        configs = [{"Name": key, "Value": value} for key, value in topic.configs.items()]
        rows = {"NumPartitions": partitions, "ReplicationFactor": factor, "Assignments": [], "Configs": configs}
        return {"Name": name, **rows}
