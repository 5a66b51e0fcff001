"""Faults on demand: rules that match requests, and that delay, refuse or drop them."""

from __future__ import annotations

import fnmatch
import inspect
import itertools
import threading
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NoReturn
from uuid import UUID

from kbroker._core.timer.timing_wheel import Timer
from kbroker.common.errors import Errors, ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.common.similar_names import did_you_mean
from kbroker.common.threads import new_thread
from kbroker.handlers.api_table import ApiEntry, encode_response
from kbroker.network.request_channel import InboundRequest, SuppressedResponses
from kbroker.protocol import codec
from kbroker.requests.context import Body, RequestContext
from kbroker.testing import responses

if TYPE_CHECKING:
    from kbroker.broker import Broker

logger = get_logger(__name__)

UNLIMITED = -1
LONGEST_DELAY_MS = 86_400_000
ADVANCE_MS = 60_000


@dataclass(eq=False, repr=False)
class Fault:
    """One rule and its hits so far; made by ``FaultRules.add``.

    As a context manager it is removed at the end of the block; after a success without a hit, AssertionError is raised.

    Threads: any. Attributes are those of ``FaultRules.add``; ``id`` names the rule.
    """

    _rules: FaultRules
    id: int
    keys: frozenset[int]
    topic: str | None
    client_id: str | None
    error: Errors | None
    delay_ms: int
    drop: bool
    disconnect: bool
    execute: bool
    count: int
    skip: int

    def __post_init__(self) -> None:
        self.lost = SuppressedResponses(self.drop)
        self._hits = 0
        self._passed = 0
        self._seen: Counter[str] = Counter()

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, kind: object, *failure: object) -> None:
        self.remove()
        if kind is None:
            self.assert_hit()

    @property
    def hits(self) -> int:
        """Number of requests that the rule has matched so far."""
        return self._hits

    @property
    def left(self) -> int:
        """Number of requests that the rule will still match; -1: all until it is removed."""
        return UNLIMITED if self.count == UNLIMITED else self.count - self._hits

    def remove(self) -> None:
        """Remove the rule; connections of dropped requests are closed, and delays continue to their end."""
        self._rules.remove(self)

    def wait(self, hits: int = 1, timeout_s: float = 10.0) -> None:
        """Wait until the rule has matched ``hits`` requests. Raises: TimeoutError after ``timeout_s`` real seconds."""
        with self._rules.changed:
            if not self._rules.changed.wait_for(lambda: self._hits >= hits, timeout_s):
                raise TimeoutError(f"{self} has {self._hits} hits of {hits} after {timeout_s:g} s{self._story()}")

    def assert_hit(self, times: int | None = None) -> None:
        """Raise AssertionError unless the rule has matched a request; ``times``: the exact number."""
        if self._hits == times or (times is None and self._hits > 0):
            return
        wanted = "at least 1" if times is None else str(times)
        raise AssertionError(f"{self} has {self._hits} hits, expected {wanted}{self._story()}")

    def _story(self) -> str:
        seen = ", ".join(f"{name} {count}x" for name, count in self._seen.most_common(8))
        return f"; requests seen meanwhile: {seen or 'none'}"

    def __str__(self) -> str:
        names = "/".join(codec.api(key).name for key in sorted(self.keys)) if self.keys else "any API"
        where = "".join(
            f" {name}={value!r}" for name, value in (("topic", self.topic), ("client_id", self.client_id)) if value
        )
        return f"fault {self.id} ({names}{where}: {self.action})"

    @property
    def action(self) -> str:
        """The effect of the rule, in words."""
        delay = f"delay {self.delay_ms} ms" if self.delay_ms else ""
        then = "drop" if self.drop else "disconnect" if self.disconnect else self.error.name if self.error else ""
        return " then ".join(word for word in (delay, "execute" if self.execute else "", then) if word)

    # The callers of these methods hold the rules' lock.
    def meets(self, key: int, client_id: str, topics: frozenset[str]) -> bool:
        if self.left == 0 or (self.keys and key not in self.keys):
            return False
        if self.client_id is not None and not fnmatch.fnmatchcase(client_id, self.client_id):
            return False
        if self.topic is not None and not any(fnmatch.fnmatchcase(name, self.topic) for name in topics):
            return False
        self._passed += 1
        return self._passed > self.skip

    def note_hit(self) -> None:
        self._hits += 1

    def note_seen(self, name: str) -> None:
        self._seen[name] += 1


class FaultRules:
    """The faults of one broker, in the order they were added; the first that matches a request decides.

    A rule for an API that is served natively sends its requests through Python while the rule has hits left; without
    rules nothing is slower. Rules survive a restart of the broker.

    Threads: any. Lock: ``changed``, taken before the broker's own; no response is sent under it.
    """

    def __init__(self, broker: Broker) -> None:
        self.changed = threading.Condition()
        self._broker = broker
        self._rules: list[Fault] = []
        self._numbers = itertools.count(1)
        self._held: list[tuple[Fault, InboundRequest]] = []
        self._waiting: dict[int, InboundRequest] = {}
        self._tokens = itertools.count()
        self._timer: Timer | None = None
        self._thread: threading.Thread | None = None
        self._suspended = True

    # ------------------------------------------------------------ rules

    def add(
        self,
        api: str | int | tuple[str | int, ...] | None = None,
        *,
        topic: str | None = None,
        client_id: str | None = None,
        error: Errors | str | int | None = None,
        delay_ms: int = 0,
        drop: bool = False,
        disconnect: bool = False,
        execute: bool = False,
        count: int = 1,
        skip: int = 0,
        **unknown: NoReturn,
    ) -> Fault:
        """Add a rule: let requests fail from now on.

        Args:
            api: name ("Produce") or key of an API, or several; None for every API.
            topic: only requests that name this topic (or match this pattern: ``orders-*``).
            client_id: only clients with this id, or pattern.
            error: respond with this error for each topic and partition in the request, without executing it. Produce
                with acks=0 closes the connection instead, as in Kafka.
            delay_ms: milliseconds of the broker's clock before the other effect; alone: before the request is served.
            drop: never respond; the connection stays open until the client times out.
            disconnect: close the connection, after the responses to earlier requests.
            execute: with drop or disconnect: execute the request first, and lose its response, so that a retry by the
                client repeats it.
            count: number of requests, -1 for all until the rule is removed.
            skip: number of matching requests that pass first.
        Raises: ValueError for an invalid combination; TypeError for an unknown argument, or a pattern that is not text.
        """
        for name in unknown:
            hint = did_you_mean(name, inspect.signature(self.add).parameters)
            raise TypeError(f"add() got an unexpected keyword argument {name!r}{hint}")
        patterns: dict[str, object] = {"topic": topic, "client_id": client_id}
        for name, pattern in patterns.items():
            if not isinstance(pattern, str | None):
                raise TypeError(f"{name}: expected one name or pattern, got {pattern!r}; add a rule for each name")
        wanted = () if api is None else api if isinstance(api, tuple) else (api,)
        if api is not None and not wanted:
            raise ValueError("expected an API, got none; None is every API")
        keys = frozenset(_key(one) for one in wanted)
        served = self._broker.apis.entries
        for key in keys:
            if key not in served:
                raise ValueError(f"this broker does not serve {codec.api(key).name}")
        code = _error(error)
        if code == Errors.NONE:
            raise ValueError("expected an error, got NONE: its response would report success")
        if sum((code is not None, drop, disconnect)) > 1:
            raise ValueError("expected at most one of error, drop and disconnect")
        if code is None and not drop and not disconnect and not delay_ms:
            raise ValueError("expected an error, a delay, drop or disconnect, got none of them")
        if execute and not drop and not disconnect:
            raise ValueError("execute needs drop or disconnect: that is how the response is lost")
        if not 0 <= delay_ms <= LONGEST_DELAY_MS:
            raise ValueError(f"delay_ms must be 0 to {LONGEST_DELAY_MS}, got {delay_ms}")
        if count != UNLIMITED and count < 1:
            raise ValueError(f"count must be -1 or at least 1, got {count}")
        if skip < 0:
            raise ValueError(f"skip must be >= 0, got {skip}")
        with self.changed:
            effects = (delay_ms, drop, disconnect, execute)
            fault = Fault(self, next(self._numbers), keys, topic, client_id, code, *effects, count, skip)
            self._rules.append(fault)
        self._notify_broker()
        return fault

    def all(self) -> list[Fault]:
        """Return all rules in order, including the spent ones."""
        with self.changed:
            return [*self._rules]

    def remove(self, fault: Fault) -> None:
        """Remove a rule and close the connections that it keeps waiting. Idempotent."""
        with self.changed:
            if fault in self._rules:
                self._rules.remove(fault)
            mine = [request for owner, request in self._held if owner is fault]
            self._held = [pair for pair in self._held if pair[0] is not fault]
        for request in mine:
            request.close()
        fault.lost.close()
        self._notify_broker()

    def clear(self) -> int:
        """Remove every rule. Returns: their number."""
        rules = self.all()
        for fault in rules:
            self.remove(fault)
        return len(rules)

    def _notify_broker(self) -> None:
        with self.changed:
            active = [fault for fault in self._rules if fault.left != 0]
            keys: set[int] = set()
            for fault in active:
                keys |= fault.keys or {entry.key for entry in self._broker.apis.entries.values() if entry.is_native}
            # under the lock, so that the later of two concurrent changes takes effect
            self._broker.intercept(self._intercept if active else None, keys)

    # ------------------------------------------------------------ requests

    def _intercept(self, request: InboundRequest) -> bool:
        entry = self._broker.apis.find(request.api_key, request.api_version)
        if entry is None:
            return False
        try:
            body = codec.decode_request(request.api_key, request.api_version, request.body)
        except ProtocolError:
            return False  # the handler closes its connection
        client_id = request.client_id or ""
        registry = self._broker.context.topics

        def name_of(topic_id: UUID) -> str | None:
            view = registry.get_by_id(topic_id)
            return None if view is None else view.name

        topics = frozenset(responses.topics_in(body, name_of))
        with self.changed:
            if self._suspended:
                return False
            hidden = responses.continues_session(entry.key, request.api_version, body)
            fault: Fault | None = None
            for rule in self._rules:
                rule.note_seen(entry.name)
            if hidden and any(rule.left != 0 and self._needs_topics(rule, entry.key) for rule in self._rules):
                pass  # only the first request of a session names its topics
            else:
                fault = next((one for one in self._rules if one.meets(entry.key, client_id, topics)), None)
                if fault is None:
                    return False
                fault.note_hit()
                self.changed.notify_all()
        if fault is None:
            self._response(request, entry, responses.end_session())
            return True
        if fault.left == 0:
            self._notify_broker()
        if fault.delay_ms:
            self._delay(fault, request, entry, body)
        else:
            self._do(fault, request, entry, body)
        return True

    @staticmethod
    def _needs_topics(fault: Fault, key: int) -> bool:
        return (not fault.keys or key in fault.keys) and (fault.topic is not None or fault.error is not None)

    def _do(self, fault: Fault, request: InboundRequest, entry: ApiEntry, body: Body) -> None:
        if fault.execute:
            request.suppress_response(fault.lost)
            self._broker.resume(request)
            return
        if fault.drop:
            with self.changed:
                if not self._suspended and fault in self._rules:
                    self._held.append((fault, request))
                    return
        elif fault.error is not None:
            failure = responses.error_response_of(entry)
            if failure is not None and not responses.wants_no_response(entry.key, body):
                self._response(request, entry, failure(body, fault.error, _facts(request)))
                return
        elif not fault.disconnect:
            self._broker.resume(request)
            return
        request.close()

    def _response(self, request: InboundRequest, entry: ApiEntry, body: Body) -> None:
        request.respond(encode_response(entry, _facts(request), body))

    # ------------------------------------------------------------ delays

    def _delay(self, fault: Fault, request: InboundRequest, entry: ApiEntry, body: Body) -> None:
        with self.changed:
            if self._timer is None:
                request.close()  # the broker stops
                return
            token = next(self._tokens)
            self._waiting[token] = request
            timer = self._timer

        def run() -> None:
            with self.changed:
                if self._waiting.pop(token, None) is None:
                    return
            try:
                self._do(fault, request, entry, body)
            except Exception:
                logger.exception("%s failed", fault)
                if not request.has_response:
                    request.close()

        timer.add(fault.delay_ms, run)

    @property
    def delayed(self) -> int:
        """Number of requests that wait for their delay to pass."""
        return len(self._waiting)

    @property
    def dropped(self) -> int:
        """Number of requests that are kept without a response, executed or not."""
        return len(self._held) + sum(fault.lost.kept for fault in self.all())

    @property
    def is_idle(self) -> bool:
        """Return whether all requests whose delay has passed have been served."""
        timer = self._timer
        return timer is None or timer.is_idle

    # ------------------------------------------------------------ life, called by the broker

    def begin(self) -> None:
        """Start, with the broker: delays follow its clock."""
        with self.changed:
            for fault in self._rules:
                fault.lost = SuppressedResponses(fault.drop)
            timer = Timer(self._broker.clock, 1, 20)
            thread = new_thread("fault-delays", partial(_advance, timer))
            thread.start()  # may fail: the end would wait for a thread that never started
            self._timer, self._thread, self._suspended = timer, thread, False

    def end(self) -> None:
        """Stop, with the broker: delay no further requests, and close the connections of delayed ones."""
        with self.changed:
            self._suspended = True
            held = [request for _, request in self._held] + list(self._waiting.values())
            self._held, self._waiting = [], {}
            timer, thread, self._timer, self._thread = self._timer, self._thread, None, None
        if timer is not None and thread is not None:
            timer.close()
            thread.join()
        for request in held:
            if not request.has_response:
                request.close()
        for fault in self.all():
            fault.lost.close()


def _advance(timer: Timer) -> None:
    while not timer.closed:
        timer.advance(ADVANCE_MS)


def _facts(request: InboundRequest) -> RequestContext:
    return RequestContext(
        request.api_key, request.api_version, request.correlation_id, request.client_id or "", request.listener,
        request.principal,
    )  # fmt: skip


def _key(api: str | int) -> int:
    """Return the key of an API named in any spelling ("ListOffsets", "list_offsets") or by key. Raises: ValueError."""
    if isinstance(api, bool) or not isinstance(api, (int, str)):
        raise ValueError(f"expected an API by its name or key, got {api!r}")
    found = codec.apis()
    if isinstance(api, int) or api.isdigit():
        if int(api) not in found:
            raise ValueError(f"expected the key of an API, 0 to {max(found)}, got {api}")
        return int(api)
    wanted = api.replace("_", "").lower()
    for key, one in found.items():
        if one.name.lower() == wanted:
            return key
    hint = did_you_mean(wanted, [one.name for one in found.values()])
    raise ValueError(f"expected the name of an API, got {api!r}{hint}")


def _error(error: Errors | str | int | None) -> Errors | None:
    if error is None or isinstance(error, Errors):
        return error
    for known in Errors:
        if not isinstance(error, bool) and error == (known.name if isinstance(error, str) else int(known)):
            return known
    hint = did_you_mean(error, [known.name for known in Errors]) if isinstance(error, str) else ""
    raise ValueError(f"expected the name or number of an error, got {error!r}{hint}")
