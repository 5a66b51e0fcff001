"""Seed of a random test and number of its rounds: environment variables repeat or extend a run."""

import os
import random


def random_seed() -> int:
    """Return KBROKER_SEED or a new seed, and print it for the report of a failed test."""
    seed = int(os.environ.get("KBROKER_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"KBROKER_SEED={seed}")
    return seed


def kill_count(few: int, many: int) -> int:
    """Return KBROKER_KILLS if set, else ``many`` under `make soak` and ``few`` otherwise."""
    return int(os.environ.get("KBROKER_KILLS", "0")) or (many if os.environ.get("KBROKER_SOAK") == "1" else few)


def history_count(few: int, many: int) -> int:
    """Return KBROKER_HISTORIES if set, else ``many`` under `make soak` and ``few`` otherwise."""
    return int(os.environ.get("KBROKER_HISTORIES", "0")) or (many if os.environ.get("KBROKER_SOAK") == "1" else few)


def history_seed() -> int:
    """Return KBROKER_SEED if set, else a new seed under `make soak` and 1 otherwise."""
    is_random = "KBROKER_SEED" in os.environ or os.environ.get("KBROKER_SOAK") == "1"
    return random_seed() if is_random else 1
