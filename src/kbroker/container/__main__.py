"""`python -m kbroker.container WORD ...`: the program that the scripts of the image run.

start [PROPERTIES [--override NAME=VALUE]...] [-Dkafka.NAME=VALUE]...  format the log folders if needed, and serve
properties  print the properties of the environment
kafka-topics, kafka-console-producer ...  a tool of Kafka, see `kafka_tools`
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import sys

from kbroker.__main__ import exit_after, leave_on


def main() -> None:
    """Run one command of the image."""
    leave_on(_signal.SIGINT)
    leave_on(_signal.SIGTERM)
    word, *rest = sys.argv[1:] or ["start"]
    if word == "start":
        _start(rest)
    elif word == "properties":
        import os

        from kbroker.container.settings import properties_text

        print(properties_text(os.environ), end="")
    else:
        from kbroker.container.kafka_tools import kafka_tools

        kafka_tools.main([word, *rest], prog_name="")


def _start(words: list[str]) -> None:
    import gc
    import os

    gc.disable()  # as in `kbroker serve`
    from kbroker import serving
    from kbroker.container import start

    try:
        exit_after(lambda: serving.serve(lambda: start.prepared(words, os.environ), start.lines))
    except serving.OptionError as error:
        from kbroker.cli import failed

        sys.exit(failed(str(error), serving.CONFIG_STATUS))


if __name__ == "__main__":
    main()
