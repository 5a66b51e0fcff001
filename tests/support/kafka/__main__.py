"""Apache Kafka on the command line.

    python -m tests.support.kafka start [--port 29092] [--heap 512m] [NAME=VALUE ...]   serve until `stop`
    python -m tests.support.kafka stop [--port 29092]                                   stop it and delete its data
    python -m tests.support.kafka tool CLASS [ARGUMENT ...]                             run one of Kafka's own tools
    python -m tests.support.kafka classpath                                             print the class path

Needs Java 17 and Maven. Exit status: 0 done, 1 the broker did not start or did not run, 2 wrong usage; `tool` exits
with the tool's status.
"""

import argparse
import os
import sys
from pathlib import Path

from tests.support.kafka.broker import COLLECTOR, HEAP, ApacheKafka, StartError, stop_detached
from tests.support.kafka.jars import BUILD, VERSION, Unavailable, classpath, java_command

PORT = 29092


def folder_of(port: int) -> Path:
    return BUILD / f"broker-{port}"


def start(port: int, heap: str, settings: list[str]) -> int:
    pairs = [setting.partition("=") for setting in settings]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        print(f"expected NAME=VALUE, found {wrong[0]}", file=sys.stderr)
        return 2
    stop_detached(folder_of(port))
    broker = ApacheKafka(
        {name: value for name, _, value in pairs},
        port=port,
        heap=heap,
        folder=folder_of(port),
        outlives=True,
        compiler=COLLECTOR,
    )
    try:
        broker.start()
    except BaseException:
        broker.stop()
        raise
    print(f"Apache Kafka {VERSION} on {broker.bootstrap}, process {broker.pid}")
    return 0


def main() -> int:
    if sys.argv[1:2] == ["tool"] and len(sys.argv) > 2:  # further arguments are the tool's
        command = java_command(*sys.argv[2:])
        os.execv(command[0], command)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("start", "stop", "tool", "classpath"))
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--heap", default=HEAP)
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE")
    options = parser.parse_args()
    if options.what == "start":
        return start(options.port, options.heap, options.settings)
    if options.what == "stop":
        return 0 if stop_detached(folder_of(options.port)) else 1
    if options.what == "tool":
        parser.error("a tool is named by its class, for example org.apache.kafka.tools.TopicCommand")
    print(classpath())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Unavailable, StartError) as failure:
        print(f"Apache Kafka: {failure}", file=sys.stderr)
        sys.exit(1)
