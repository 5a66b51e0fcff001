"""Release of memory by the keeper: after growth or a fall, rarely under a steady load."""

from kbroker.broker.memory_keeper import GROWN_BYTES, MOST_LEFT_OUT, MemoryKeeper


class Machine:
    """Resident memory, part of which is free in the arenas."""

    def __init__(self) -> None:
        self.used = 100 << 20
        self.free = 0
        self.trims = 0

    def resident(self) -> int:
        return self.used + self.free

    def release(self) -> None:
        self.trims += 1
        self.free = 0


def keeper_of(machine: Machine) -> MemoryKeeper:
    return MemoryKeeper(machine.resident, machine.release)


def test_what_a_crowd_left_is_given_back() -> None:
    """Growth by the threshold is released; 200 half requests once left up to 84 MiB until the broker's end."""
    machine = Machine()
    keeper = keeper_of(machine)
    keeper.look()
    assert machine.trims == 0
    machine.free = GROWN_BYTES
    keeper.look()
    assert (machine.trims, machine.free) == (1, 0)


def test_what_was_in_use_at_the_first_look_is_given_back_later() -> None:
    """A trim during the load frees little; when memory falls after the load, the rest is released."""
    machine = Machine()
    keeper = keeper_of(machine)
    machine.used += 50 << 20
    keeper.look()
    machine.used -= 50 << 20
    machine.free = 20 << 20
    for _ in range(2):
        keeper.look()
    assert (machine.trims, machine.free) == (2, 0)


def test_what_becomes_free_without_a_visible_change_is_given_back() -> None:
    """Memory that was in use at the last trim is released at the next look, or within a minute of later looks."""
    machine = Machine()
    keeper = keeper_of(machine)
    for looks in (0, 3):
        machine.used += 50 << 20
        keeper.look()
        for _ in range(looks):
            keeper.look()
        machine.used -= 50 << 20
        machine.free = 50 << 20
        for _ in range(2 * MOST_LEFT_OUT):
            keeper.look()
        assert machine.free == 0
    trims = machine.trims
    for _ in range(100):
        keeper.look()
    assert machine.trims == trims, "nothing is above the least"


def test_steady_load_is_trimmed_seldom() -> None:
    """A load that reuses released memory costs one trim in a dozen looks, until quiet looks reset the interval."""
    machine = Machine()
    keeper = keeper_of(machine)
    trims = []
    for _ in range(60):
        machine.free = 10 << 20
        keeper.look()
        trims.append(machine.trims)
    assert machine.trims <= 4 + 60 // (MOST_LEFT_OUT + 1)
    machine.free = 0
    for _ in range(2 * MOST_LEFT_OUT):
        keeper.look()
    before = machine.trims
    machine.free = 10 << 20
    keeper.look()
    assert machine.trims == before + 1


def test_small_changes_are_left_alone() -> None:
    """Growth below the threshold causes no trim after any number of looks."""
    machine = Machine()
    keeper = keeper_of(machine)
    for turn in range(100):
        machine.free = (GROWN_BYTES - 1) * (turn % 2)
        keeper.look()
    assert machine.trims == 0
