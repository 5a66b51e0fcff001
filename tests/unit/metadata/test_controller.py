"""The controller makes changes atomically, stores them before it publishes them, and stops at an unknown outcome."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from kbroker.common.errors import Errors, KafkaError, OutcomeUnknownError
from kbroker.metadata.controller import Controller, NotInForceError
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.image.image_errors import MetadataReplayError
from kbroker.metadata.producer_ids import ProducerIds
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record
from tests.support.errors import raising
from tests.support.fixtures import fixture_of
from tests.support.metadata import MemoryController, change, following, group_config, groups, together

GROUP = 32


class Follower:
    """Publisher that lists its name and the changed groups of each delta. ``error``: raised after that."""

    def __init__(self, name: str, calls: list[tuple[str, list[str]]], error: Exception | None = None) -> None:
        self.name = name
        self.calls = calls
        self.error = error
        self.images: list[tuple[MetadataImage, MetadataImage]] = []
        self.lock = threading.Lock()
        self.wanted: Callable[[MetadataDelta], bool] = lambda delta: True

    def concerns(self, delta: MetadataDelta) -> bool:
        return self.wanted(delta)

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.calls.append((self.name, sorted(name for _, name in delta.changed_configs)))
        self.images.append((delta.image, image))
        if self.error is not None:
            raise self.error


def setting(controller: Controller, *names: str) -> Callable[[], None]:
    """Return a call that sets a config of each group."""
    return lambda: change(controller, *map(group_config, names))


controller = fixture_of(MemoryController)


@pytest.fixture
def calls(controller: MemoryController) -> list[tuple[str, list[str]]]:
    """Return the calls of a publisher of the controller."""
    calls: list[tuple[str, list[str]]] = []
    following(controller, Follower("one", calls))
    return calls


def test_a_change_is_one_step(controller: MemoryController) -> None:
    """The records of a change are appended and synced together, and published as one delta between two images."""
    follower = following(controller, Follower("one", []))
    before = controller.image
    change(controller, group_config("a"), group_config("b"), group_config("a", None))
    assert follower.calls == [("one", ["a", "b"])]
    assert follower.images == [(before, controller.image)]
    assert (groups(controller), controller.image.offset) == (["b"], before.offset + 3)
    assert controller.image.offset + 1 == controller.end_offset
    assert (len(controller.storage.appended), controller.storage.flushes) == (1, 1)
    assert before.configs.keys() == controller.image.configs.keys() - {(GROUP, "b")}, "the former image is unchanged"


def test_a_plan_without_records_changes_nothing(
    controller: MemoryController, calls: list[tuple[str, list[str]]]
) -> None:
    before = controller.image
    controller.change(lambda image: [])
    assert controller.image is before
    assert (controller.storage.appended, controller.storage.flushes, calls) == ([], 0, [])


def test_waiting_changes_share_a_batch(controller: MemoryController, calls: list[tuple[str, list[str]]]) -> None:
    """Each change is planned against the image after the preceding changes, and published separately, in order."""
    seen: list[list[str]] = []

    def plan(image: MetadataImage) -> list[MetadataRecord]:
        seen.append([name for kind, name in image.configs if kind == GROUP])
        return [group_config("c")]

    together(controller, setting(controller, "a"), setting(controller, "b"), lambda: controller.change(plan))
    assert (controller.storage.appended, controller.storage.flushes) == ([[*map(group_config, "abc")]], 1)
    assert calls == [("one", ["a"]), ("one", ["b"]), ("one", ["c"])]
    assert (seen, groups(controller)) == ([["a", "b"]], ["a", "b", "c"])


def test_the_error_of_a_plan_is_its_callers(controller: MemoryController, calls: list[tuple[str, list[str]]]) -> None:
    """The caller gets the error of its plan, even an OSError; other changes of the same sync are made."""

    def bad(error: Exception) -> Callable[[], None]:
        return lambda: controller.change(raising(error))

    errors = (KafkaError(Errors.INVALID_REQUEST), ZeroDivisionError(), OSError(2, "no such file"))
    results = together(
        controller, bad(errors[0]), setting(controller, "a"), bad(errors[1]), bad(errors[2]), setting(controller, "b")
    )
    assert results == [errors[0], None, errors[1], errors[2], None]
    assert (groups(controller), controller.storage.flushes) == (["a", "b"], 1)
    assert calls == [("one", ["a"]), ("one", ["b"])]
    change(controller, group_config("c"))


def test_a_record_that_contradicts_the_image_is_not_stored(controller: MemoryController) -> None:
    """A record that contradicts the image is not stored, since each later start would fail during replay."""
    before, unknown = controller.image, metadata_record("UnfenceBrokerRecord", {"Id": 9, "Epoch": 1})
    with pytest.raises(MetadataReplayError):
        change(controller, group_config("a"), unknown)
    assert (controller.image, controller.storage.appended) == (before, [])
    change(controller, group_config("b"))
    assert groups(controller) == ["b"]


def test_a_record_that_contradicts_the_image_is_not_stored_with_other_changes(controller: MemoryController) -> None:
    """A refused change stores nothing in the batch of the changes that wait with it."""
    unknown = metadata_record("UnfenceBrokerRecord", {"Id": 9, "Epoch": 1})
    results = together(
        controller, setting(controller, "a"), lambda: change(controller, unknown), setting(controller, "b")
    )
    assert (results[0], type(results[1]), results[2]) == (None, MetadataReplayError, None)
    assert [record.name for batch in controller.storage.appended for record in batch] == ["ConfigRecord"] * 2
    assert groups(controller) == ["a", "b"]


def test_a_refused_append_changes_nothing(
    controller: MemoryController, calls: list[tuple[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting changes before the failed change are made; changes that are planned against its image are refused."""
    before = controller.image
    controller.storage.is_full = True
    with pytest.raises(KafkaError, match="the disk is full"):
        change(controller, group_config("a"))
    assert (controller.image, controller.storage.flushes, calls) == (before, 0, [])
    controller.storage.is_full = False
    append = controller.storage.append

    def append_but_b(records: list[MetadataRecord], level: int, *, frees_space: bool) -> None:
        controller.storage.is_full = group_config("b") in records
        append(records, level, frees_space=frees_space)

    monkeypatch.setattr(controller.storage, "append", append_but_b)
    results = together(controller, *(setting(controller, name) for name in "abc"))
    assert [type(result) for result in results] == [type(None), KafkaError, KafkaError]
    assert groups(controller) == ["a"]
    assert calls == [("one", ["a"])]
    assert controller.image.offset + 1 == controller.end_offset


def already_set(controller: MemoryController, name: str, error: Errors = Errors.NONE) -> Callable[[], None]:
    """Return a call that sets the config of a group unless it is set; then it does nothing, or has the error."""

    def plan(image: MetadataImage) -> list[MetadataRecord]:
        if (GROUP, name) not in image.configs:
            return [group_config(name)]
        if error:
            raise KafkaError(error)
        return []

    return lambda: controller.change(plan)


@pytest.mark.parametrize("failure", ["", "is_full", "is_broken"])
def test_a_change_that_finds_an_earlier_one_depends_on_it(controller: MemoryController, failure: str) -> None:
    """A change that finds an earlier one, and so does nothing or fails, is refused if the earlier one is refused."""
    if failure:
        setattr(controller.storage, failure, True)
    calls = (
        setting(controller, "a"),
        already_set(controller, "a"),
        already_set(controller, "a", Errors.TOPIC_ALREADY_EXISTS),
        already_set(controller, "b"),
    )
    results = together(controller, *calls)
    if failure:
        assert [result is results[0] for result in results] == [True] * 4
        assert type(results[0]) is (KafkaError if failure == "is_full" else OutcomeUnknownError)
        assert groups(controller) == []
    else:
        assert results == [None, None, results[2], None]
        assert isinstance(results[2], KafkaError)
        assert results[2].error is Errors.TOPIC_ALREADY_EXISTS
        assert groups(controller) == ["a", "b"]
        assert len(controller.storage.appended) == 1
        assert controller.image.offset + 1 == controller.end_offset


def test_waiting_changes_that_do_not_fit_into_one_batch(
    controller: MemoryController, calls: list[tuple[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batch begins with the change that does not fit, which is refused if the changes before it are."""
    monkeypatch.setattr("kbroker.metadata.controller.BATCH_RECORDS", 2)
    waiting = (setting(controller, "a", "b"), setting(controller, "c"), setting(controller, "d"))
    assert together(controller, *waiting) == [None, None, None]
    assert controller.storage.appended == [[*map(group_config, "ab")], [*map(group_config, "cd")]]
    assert calls == [("one", ["a", "b"]), ("one", ["c"]), ("one", ["d"])]
    append = controller.storage.append

    def append_but_e(records: list[MetadataRecord], level: int, *, frees_space: bool) -> None:
        controller.storage.is_full = group_config("e") in records
        append(records, level, frees_space=frees_space)

    monkeypatch.setattr(controller.storage, "append", append_but_e)
    seen: list[list[str]] = []

    def plan(image: MetadataImage) -> list[MetadataRecord]:
        seen.append([name for kind, name in image.configs if kind == GROUP])
        return [group_config("g")]

    refused, also, made = together(
        controller, setting(controller, "e", "f"), setting(controller, "h"), lambda: controller.change(plan)
    )
    assert isinstance(refused, KafkaError)
    assert (also, made) == (refused, None)
    assert (seen, groups(controller)) == ([["a", "b", "c", "d"]], ["a", "b", "c", "d", "g"])
    assert calls[3:] == [("one", ["g"])]
    assert controller.image.offset + 1 == controller.end_offset


def test_space_is_freed_by_changes_that_say_so(controller: MemoryController, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(controller.storage, "append", lambda records, level, frees_space: asked.append(frees_space))
    change(controller, group_config("a"))
    controller.change(lambda image: [group_config("a", None)], frees_space=True)
    assert asked == [False, True]


@pytest.mark.parametrize("step", ["write", "sync"])
def test_an_unknown_outcome_ends_all_changes(
    controller: MemoryController,
    calls: list[tuple[str, list[str]]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: str,
) -> None:
    """Nothing is published, every waiting change fails, and the broker stops once, with the reason."""
    before = controller.image
    reasons: list[str] = []
    controller.on_failure = reasons.append
    with monkeypatch.context() as patch:
        name = "append" if step == "write" else "flush"
        patch.setattr(controller.storage, name, raising(OSError(5, "Input/output error")))
        results = together(controller, setting(controller, "a"), setting(controller, "b"))
    assert [type(result) for result in results] == [OutcomeUnknownError] * 2
    for _ in range(2):  # the outcome stays unknown when the disk works again
        with pytest.raises(OutcomeUnknownError):
            change(controller, group_config("c"))
    with pytest.raises(OutcomeUnknownError):
        controller.change(lambda image: [])
    assert str(controller.failed("another failure")) == str(results[0])
    assert (controller.image, calls) == (before, [])
    assert len(controller.storage.appended) == (0 if step == "write" else 1)
    what = "written" if step == "write" else "synced"
    assert reasons == [
        f"the metadata log cannot be {what}: [Errno 5] Input/output error; it is unknown whether the last change is "
        "stored, so the broker stops: repair the disk, then start it again"
    ]
    assert [one.getMessage() for one in caplog.records if one.levelname == "CRITICAL"] == reasons


def test_an_interrupted_change_ends_all_changes(controller: MemoryController) -> None:
    """An interrupt of the thread that makes the waiting changes fails all of them."""
    reasons: list[str] = []
    controller.on_failure = reasons.append

    class Interrupt(BaseException):
        pass

    results = together(controller, setting(controller, "a"), lambda: controller.change(raising(Interrupt)))
    assert sorted(type(result).__name__ for result in results) == ["Interrupt", "OutcomeUnknownError"]
    assert (groups(controller), len(reasons)) == ([], 1)
    with pytest.raises(OutcomeUnknownError):
        change(controller, group_config("b"))


def test_parts_are_published_in_their_order(controller: MemoryController) -> None:
    """A publisher that fails does not stop the others. The change is stored, and its caller gets the failure."""
    calls: list[tuple[str, list[str]]] = []
    failure = ZeroDivisionError("a bug")
    controller.publishers += [Follower("one", calls), Follower("two", calls, failure), Follower("three", calls)]
    with pytest.raises(NotInForceError, match="a bug") as caught:
        change(controller, group_config("a"))
    assert caught.value.cause is failure
    assert calls == [("one", ["a"]), ("two", ["a"]), ("three", ["a"])]
    assert groups(controller) == ["a"]


def test_a_slow_part_delays_no_change_of_another(controller: MemoryController) -> None:
    """While one publisher is busy, changes for other publishers are made and published."""
    calls: list[tuple[str, list[str]]] = []
    slow, other = Follower("slow", calls), Follower("other", calls)
    slow.wanted = lambda delta: (32, "slow") in delta.changed_configs
    following(controller, slow)
    following(controller, other)
    with slow.lock:  # held during a publication
        thread = threading.Thread(target=change, args=(controller, group_config("slow")))
        change(controller, group_config("a"))
        assert calls == [("other", ["a"])]
        thread.start()
        while groups(controller) != ["a", "slow"]:
            thread.join(0.001)
        change(controller, group_config("b"))
        assert calls == [("other", ["a"]), ("other", ["slow"]), ("other", ["b"])]
        assert thread.is_alive()
    thread.join()
    assert calls[3:] == [("slow", ["slow"])]


def test_two_threads(controller: MemoryController) -> None:
    """Changes of two threads are neither lost nor duplicated, and each is in the image when its call returns."""
    wrong: list[str] = []

    def run(name: str) -> None:
        for number in range(200):
            change(controller, group_config(f"{name}{number}"))
            if (GROUP, f"{name}{number}") not in controller.image.configs:
                wrong.append(f"{name}{number}")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, "xy"))
    assert wrong == []
    assert groups(controller) == sorted(f"{name}{number}" for name in "xy" for number in range(200))
    assert sum(map(len, controller.storage.appended)) == 400  # in fewer batches when changes wait for each other
    assert controller.storage.flushes <= 400
    assert ProducerIds(controller).next() == 0
