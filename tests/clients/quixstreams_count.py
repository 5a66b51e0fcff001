"""Quix Streams application with exactly-once semantics that counts the words of "words" into "counted".

    python quixstreams_count.py BOOTSTRAP STATE_FOLDER

Runs until it is killed, with the packages of quixstreams.txt, a state store and its changelog topic.
"""

import sys

from quixstreams import Application, State


def count(word: str, state: State) -> str:
    """Return the next count of a word."""
    now = int(state.get("count", 0)) + 1
    state.set("count", now)
    return str(now)


def main() -> None:
    bootstrap, folder = sys.argv[1:]
    application = Application(
        broker_address=bootstrap,
        consumer_group="quix",
        processing_guarantee="exactly-once",
        auto_offset_reset="earliest",
        commit_interval=0.2,
        state_dir=folder,
        # each start has a new transactional id, so only this timeout ends the transactions of a killed one
        producer_extra_config={"transaction.timeout.ms": 3000},
        consumer_extra_config={"session.timeout.ms": 2000, "heartbeat.interval.ms": 500},
    )
    words = application.topic("words", key_deserializer="str", value_deserializer="str")
    counted = application.topic("counted", key_serializer="str", value_serializer="str")
    application.dataframe(words).apply(count, stateful=True).to_topic(counted)
    application.run()


if __name__ == "__main__":
    main()
