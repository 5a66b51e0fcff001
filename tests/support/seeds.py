"""The seed of a test at random, and the number of its turns: KBROKER_SEED and KBROKER_KILLS repeat or extend a run."""

import os
import random


def random_seed() -> int:
    """Return KBROKER_SEED, or a new seed, and print it: pytest shows it when the test fails."""
    seed = int(os.environ.get("KBROKER_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"KBROKER_SEED={seed}")
    return seed


def kill_count(few: int, many: int) -> int:
    """Return KBROKER_KILLS if set, ``many`` under `make soak`, ``few`` otherwise."""
    return int(os.environ.get("KBROKER_KILLS", "0")) or (many if os.environ.get("KBROKER_SOAK") == "1" else few)
