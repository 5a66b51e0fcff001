"""Cost of an authorizer for a Produce, end to end: brokers without one and with 1, 100 and 100,000 rules.

    python bench/bench_authorizer.py [--rounds 60] [--seconds 0.5] [--rules 1 100 100000] [--megabytes 20]
    python bench/bench_authorizer.py --instructions [--rules 1 100 10000]

Measures the broker's CPU time per request, from the scheduler (/proc/PID/task/*/schedstat), since wall time means
little on a machine with other load. Each broker runs from the start to the end; each round loads all of them in a
different order. Compared are the lowest tenths of the rounds, and each round with its neighbour. One rule allows the
client's operations; the others are for other topics, a tenth of them prefixes of twelve lengths. Loads: requests of one
record of 100 bytes, 50 in flight (a C program), and librdkafka's producer with records of 1 kB. Goal: at most 2 % of a
Produce.

--instructions instead counts the instructions of the broker's process, and of its decisions, under valgrind for a
thousand sequential requests. The numbers are independent of the machine and its load, and include the broker's periodic
tasks.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.loads import generator, peers  # noqa: E402
from bench.loads.loads import Loads, Plan  # noqa: E402
from tests.support.broker import BrokerProcess  # noqa: E402
from tests.support.client import Body, Client, produce_body  # noqa: E402

AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
TOPIC = "load"
RULES_A_REQUEST = 10_000
LITERAL, PREFIXED = 3, 4
TOPICS, WRITE = 2, 4
IN_FLIGHT = 50
REQUESTS = 1_000  # sent under valgrind


def rules(count: int) -> list[Body]:
    """Return a rule that allows every user to write to the topic of the load, and `count` - 1 other rules."""
    found = [_rule(TOPIC, LITERAL, "User:*")]
    for n in range(count - 1):
        name = f"{'abcdefghijklm'[: n // 10 % 12 + 1]}{n}" if n % 10 == 0 else f"other-{n}"
        found.append(_rule(name, PREFIXED if n % 10 == 0 else LITERAL, f"User:u{n % 1000}"))
    return found


def _rule(name: str, pattern: int, principal: str) -> Body:
    return {
        "ResourceType": TOPICS, "ResourceName": name, "ResourcePatternType": pattern, "Principal": principal,
        "Host": "*", "Operation": WRITE, "PermissionType": 3,
    }  # fmt: skip


def add(bootstrap: str, count: int) -> None:
    wanted = rules(count)
    with Client(bootstrap, "admin", timeout=120) as admin:
        for begin in range(0, len(wanted), RULES_A_REQUEST):
            made = admin.call("CreateAcls", 3, {"Creations": wanted[begin : begin + RULES_A_REQUEST]})
            if {row["ErrorCode"] for row in made["Results"]} != {0}:
                raise RuntimeError("a rule was refused")


def compared(figures: list[float], base: list[float]) -> str:
    """Return the change of the lowest tenth against another broker, and the quartiles of the rounds' changes."""
    changes = sorted((one / other - 1) * 100 for one, other in zip(figures, base, strict=True))
    low, middle, high = statistics.quantiles(changes, n=4) if len(changes) > 2 else (changes[0],) * 3
    return f"{(lowest(figures) / lowest(base) - 1) * 100:+.1f} % (rounds: {low:+.1f}, {middle:+.1f}, {high:+.1f})"


def lowest(figures: list[float]) -> float:
    """Return the mean of the lowest tenth, which other load of the machine disturbs least."""
    return statistics.mean(sorted(figures)[: max(1, len(figures) // 10)])


def instructions(count: int) -> tuple[float, float]:
    """Return the numbers of instructions of a Produce, and of its decision.

    Args: ``count`` of rules, 0 without an authorizer.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        valgrind = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        settings = {**AUTHORIZER, "allow.everyone.if.no.acl.found": "true"} if count else {}
        broker = BrokerProcess(Path(folder) / "data", settings, wrapper=valgrind)
        broker.start(180)
        try:
            peers.make_topic(peers.Server("kbroker", broker.port, broker.pid), TOPIC)
            if count:
                add(broker.bootstrap, count)
            with Client(broker.bootstrap, "load", timeout=120) as client:
                for seen in (200, REQUESTS):
                    if seen == REQUESTS:
                        subprocess.run(
                            ["callgrind_control", "-i", "on", str(broker.pid)], check=True, capture_output=True
                        )
                    for _ in range(seen):
                        client.call("Produce", 9, produce_body(TOPIC))
            subprocess.run(["callgrind_control", "-i", "off", str(broker.pid)], check=True, capture_output=True)
            broker.stop()
        finally:
            broker.discard()
        counts = [_counts(file) for file in Path(folder).glob("callgrind.out*") if file.stat().st_size]
        return max(total for total, _ in counts) / REQUESTS, max(decision for _, decision in counts) / REQUESTS


def _counts(file: Path) -> tuple[int, int]:
    """Return the instructions of the whole process, and of ``acl_allows``."""
    command = ["callgrind_annotate", "--inclusive=yes", "--threshold=100", "--show-percs=no", str(file)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"^ *([\d,]+) +(?:(PROGRAM TOTALS)|\S*acl_table_acl_allows\()", text, re.MULTILINE)
    totals = [int(number.replace(",", "")) for number, word in rows if word]
    decisions = [int(number.replace(",", "")) for number, word in rows if not word]
    return max(totals, default=0), max(decisions, default=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rules", type=int, nargs="+", default=[1, 100, 100_000])
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--instructions", action="store_true")
    chosen = parser.parse_args()
    if chosen.instructions:
        if shutil.which("valgrind") is None:
            parser.error("--instructions needs valgrind; on Debian: apt-get install valgrind")
        for count in (0, *chosen.rules):
            request, decision = instructions(min(count, 10_000))
            print(
                f"{min(count, 10_000):,} rules: {request:,.0f} instructions a request, {decision:,.0f} of them decide",
                flush=True,
            )
        return
    load = generator.Generator(generator.frames(TOPIC))
    loads = Loads(Plan(megabytes=chosen.megabytes))
    requests: dict[str, list[float]] = {}
    batches: dict[str, list[float]] = {}
    with ExitStack() as stack:
        servers = {"no authorizer": stack.enter_context(peers.kbroker())}
        for count in chosen.rules:
            # the client is not a super user; requests without a matching rule are allowed, so it can create topics and
            # rules
            settings = {**AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
            servers[f"{count:,} rules"] = stack.enter_context(peers.kbroker(settings))
        for (name, server), count in zip(servers.items(), [0, *chosen.rules], strict=True):
            peers.make_topic(server, TOPIC)
            if count:
                add(server.bootstrap, count)
            requests[name], batches[name] = [], []
            load.run(server.port, "produce", 1, IN_FLIGHT, 1.0)
        for round_number in range(chosen.rounds):
            for name in random.sample(list(servers), len(servers)):
                before = peers.cpu_ns(servers[name].pid)
                done = load.run(servers[name].port, "produce", 1, IN_FLIGHT, chosen.seconds)
                requests[name].append((peers.cpu_ns(servers[name].pid) - before) / done["requests"])
            for name in random.sample(list(servers), 0 if round_number % 4 else len(servers)):
                topic = f"fill-{round_number}"
                peers.make_topic(servers[name], topic)
                if name != "no authorizer":
                    with Client(servers[name].bootstrap, "admin") as admin:
                        admin.call("CreateAcls", 3, {"Creations": [_rule(topic, LITERAL, "User:*")]})
                before = peers.cpu_ns(servers[name].pid)
                loads.fill(servers[name].bootstrap, topic)
                batches[name].append((peers.cpu_ns(servers[name].pid) - before) / chosen.megabytes / 1e6)
                time.sleep(0.2)
    print("broker's CPU, lowest tenth; change against no authorizer: of it (rounds: quarters and median)")
    for name in servers:
        print(
            f"{name:>14}: {lowest(requests[name]) / 1000:.3f} us a request, "
            f"{compared(requests[name], requests['no authorizer'])}; "
            f"{lowest(batches[name]):.3f} ms a MB of librdkafka's, "
            f"{compared(batches[name], batches['no authorizer'])}",
            flush=True,
        )


if __name__ == "__main__":
    main()
