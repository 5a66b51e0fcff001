"""Every interleaving of a small model of the purgatory: one operation under two keys, and threads that access it.

The model makes the same decisions as ``_core/timer/purgatory_core.pyx`` and ``watch_lists.pyx``; a step is an atomic
access, or a section under the lock of a shard or of the timer. All reachable states are explored.
"""

from collections.abc import Callable, Generator
from types import GeneratorType
from typing import Any, cast

import pytest

KEYS = (0, 1)
Guard = Callable[[], bool] | None
Steps = Generator[Guard, None, Any]


class World:
    """Operation with its watch lists and its timer entry."""

    def __init__(self) -> None:
        self.refs = 1  # the reference of the thread that watches the operation
        self.is_completed = False
        self.has_block = False
        self.is_locked = False
        self.is_satisfied = False  # the condition of try_complete
        self.is_tried = False  # try_complete is running
        self.watched = [False for _ in KEYS]
        self.is_pending = False  # in the timer
        self.delayed = 0
        self.is_closed = False
        self.completions = 0
        self.cancelled = 0

    def state(self) -> tuple[object, ...]:
        return tuple(tuple(value) if isinstance(value, list) else value for value in vars(self).values())

    def check_alive(self) -> None:
        assert self.refs > 0, "the operation is used after it was freed"

    def release(self, count: int = 1) -> None:
        self.check_alive()
        self.refs -= count
        assert self.refs >= 0


def win(world: World) -> Steps:
    yield None
    world.check_alive()
    if world.is_completed:
        return False
    yield None
    world.check_alive()
    won, world.is_completed = not world.is_completed, True
    return won


def stop_timeout(world: World) -> Steps:
    yield None
    world.check_alive()
    if not world.has_block:
        return
    yield None
    was_pending, world.is_pending = world.is_pending, False
    if was_pending:
        yield None
        world.delayed -= 1
        yield None
        world.release()


def leave_all_lists(world: World) -> Steps:
    left = 0
    yield None
    world.check_alive()
    if not world.has_block:
        return
    for key in KEYS:
        yield None
        left += world.watched[key]
        world.watched[key] = False
    if left:
        yield None
        world.release(left)
        assert world.refs > 0  # the caller has a reference


def complete(world: World) -> Steps:
    yield None
    world.check_alive()
    world.completions += 1


def force_complete(world: World) -> Steps:
    if not (yield from win(world)):
        return False
    yield from stop_timeout(world)
    yield from complete(world)
    yield from leave_all_lists(world)
    return True


def try_complete(world: World) -> Steps:
    yield None
    world.check_alive()
    assert not world.is_tried, "two threads are in try_complete"
    world.is_tried = True
    done = world.is_satisfied and (yield from force_complete(world))
    yield None
    world.is_tried = False
    return done


def lock(world: World) -> Steps:
    yield lambda: not world.is_locked
    world.check_alive()
    world.is_locked = True


def unlock(world: World) -> Steps:
    yield None
    world.check_alive()
    world.is_locked = False


def watch_all(world: World) -> Steps:
    unused, closed = 0, False
    yield None
    world.refs += len(KEYS)
    yield None
    world.has_block = True
    for key in KEYS:
        yield None
        closed = world.is_closed
        if closed:
            unused += len(KEYS) - key
            break
        if world.is_completed:
            unused += 1
        else:
            world.watched[key] = True
    if unused:
        yield None
        world.release(unused)
        assert world.refs > 0
    return not closed


def start_timeout(world: World) -> Steps:
    yield None
    if world.is_completed:
        return
    yield None
    world.refs += 1
    yield None
    world.delayed += 1
    yield None
    world.is_pending = True
    yield None
    if not world.is_completed:
        yield None
        if not world.is_closed:
            return
    yield from stop_timeout(world)


def watcher(world: World) -> Steps:
    """Call ``try_complete_else_watch``, then release the caller's reference."""
    watched = False
    yield from lock(world)
    done = yield from try_complete(world)
    if not done:
        watched = yield from watch_all(world)
        if watched:
            done = yield from try_complete(world)
    yield from unlock(world)
    if not done and not watched:
        yield from force_complete(world)
    elif not done:
        yield from start_timeout(world)
    yield None
    world.release()


def event(world: World, key: int) -> Steps:
    """Satisfy the condition, then check a key."""
    yield None
    world.is_satisfied = True
    yield from check(world, key)


def check(world: World, key: int) -> Steps:
    yield None
    if not world.watched[key]:
        return
    world.refs += 1
    yield None
    if not world.is_completed:
        yield from lock(world)
        yield from try_complete(world)
        yield from unlock(world)
    yield None
    world.release()


def reaper(world: World) -> Steps:
    """Expire the operation, at any moment."""
    yield lambda: world.is_pending
    world.is_pending = False
    yield None
    world.delayed -= 1
    if (yield from win(world)):
        yield from complete(world)
        yield from leave_all_lists(world)
    yield None
    world.release()


def canceller(world: World, key: int) -> Steps:
    yield None
    if not world.watched[key]:
        return
    world.watched[key] = False
    world.cancelled += 1
    yield from stop_timeout(world)
    yield None
    world.release()


def forcer(world: World) -> Steps:
    """Complete the operation in another thread, which has a reference."""
    yield lambda: world.refs > 0
    world.refs += 1
    yield from force_complete(world)
    yield None
    world.release()


def closer(world: World) -> Steps:
    yield None
    world.is_closed = True
    for key in KEYS:
        yield None
        if not world.watched[key]:
            continue
        world.watched[key] = False
        yield from force_complete(world)
        yield None
        world.release()


def place(thread: Steps) -> tuple[object, ...]:
    """Return the position of a thread in its program, with its variables."""
    found: list[object] = []
    steps = cast("GeneratorType[Guard, None, Any] | None", thread)
    while steps is not None:
        frame = steps.gi_frame
        if frame is None:
            return ("ended",)
        values = ((name, value) for name, value in frame.f_locals.items() if not isinstance(value, World))
        found.append((frame.f_code.co_name, frame.f_lasti, *values))
        steps = cast("Any", steps.gi_yieldfrom)
    return tuple(found)


class Run:
    """Run of the threads by a schedule: the numbers of the threads that take the steps."""

    def __init__(self, programs: tuple[Callable[[World], Steps], ...], schedule: tuple[int, ...]) -> None:
        self.world = World()
        self.threads = [program(self.world) for program in programs]
        self.guards: list[Guard] = [next(thread) for thread in self.threads]
        for number in schedule:
            self.step(number)

    def step(self, number: int) -> None:
        try:
            self.guards[number] = next(self.threads[number])
        except StopIteration:
            self.guards[number] = never

    def enabled(self) -> list[int]:
        return [number for number, guard in enumerate(self.guards) if guard is None or guard()]

    def state(self) -> tuple[object, ...]:
        return (self.world.state(), *(place(thread) for thread in self.threads))


def never() -> bool:
    return False


def explore(programs: tuple[Callable[[World], Steps], ...], check_end: Callable[[World], None]) -> int:
    """Explore all states and return their number.

    Args: ``check_end``: called with each world in which every remaining thread is one that may never begin.
    """
    seen: set[tuple[object, ...]] = set()
    rest: list[tuple[int, ...]] = [()]
    while rest:
        schedule = rest.pop()
        run = Run(programs, schedule)
        state = run.state()
        if state in seen:
            continue
        seen.add(state)
        rest.extend((*schedule, number) for number in run.enabled())
        left = [number for number, guard in enumerate(run.guards) if guard is not never]
        if all(number not in schedule and programs[number] in MAY_NOT_BEGIN for number in left):
            check_end(run.world)
        else:
            assert run.enabled(), "the threads wait for each other"
    return len(seen)


def event_0(world: World) -> Steps:
    return event(world, 0)


def event_1(world: World) -> Steps:
    return event(world, 1)


def canceller_0(world: World) -> Steps:
    return canceller(world, 0)


def canceller_of_both(world: World) -> Steps:
    for key in KEYS:
        yield from canceller(world, key)


MAY_NOT_BEGIN = (reaper, forcer)
PROGRAMS = {
    "two events": (watcher, event_0, event_1),
    "an event and the time-out": (watcher, event_1, reaper),
    "an event and the close": (watcher, event_0, closer),
    "a cancel and the time-out": (watcher, canceller_0, reaper),
    "an event and a cancel": (watcher, event_1, canceller_0),
    "cancels and the close": (watcher, canceller_of_both, closer),
    "a completion from outside and the close": (watcher, forcer, closer),
    "a completion from outside and the time-out": (watcher, forcer, reaper),
    "the close and the time-out": (watcher, closer, reaper),
    "two events and the time-out": (watcher, event_0, event_1, reaper),
}


@pytest.mark.parametrize("programs", PROGRAMS.values(), ids=PROGRAMS)
def test_each_operation_completes_once_and_is_freed(programs: tuple[Callable[[World], Steps], ...]) -> None:
    """An operation is completed at most once, after an event or the close, and its reference count falls to 0."""
    ends = 0

    def check_end(world: World) -> None:
        nonlocal ends
        ends += 1
        assert world.completions == world.is_completed
        assert world.delayed == world.is_pending
        assert world.refs == sum(world.watched) + world.is_pending
        if world.is_completed:
            assert world.refs == 0
        else:
            assert world.cancelled or (world.is_pending and not (world.is_satisfied or world.is_closed))

    assert explore(programs, check_end) > 200
    assert ends > 0
