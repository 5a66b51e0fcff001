"""Thousands of config values are accepted, rejected and shown as in the recording of Apache Kafka 4.3.1."""

import re
from typing import Any, NamedTuple

import pytest

from kbroker.common.configs.config_resources import duration_ms
from tests.support import config_values
from tests.support.config_values import Prober
from tests.support.server import make_bench

VERSIONS = {
    19: ("CreateTopics", 7),
    32: ("DescribeConfigs", 4),
    33: ("AlterConfigs", 2),
    44: ("IncrementalAlterConfigs", 1),
}


class Known(NamedTuple):
    """Intended differences: resources, configs and values as expressions, and the reason."""

    resources: str
    names: str
    values: str
    why: str


KNOWN = (
    Known(
        "brokers?",
        r"listeners|listener\.security\.protocol\.map|cordoned\.log\.dirs|config\.providers"
        r"|metric\.reporters|principal\.builder\.class|ssl\.(key|trust)store\..*|ssl\.key\.password"
        r"|ssl\.(cipher\.suites|client\.auth|enabled\.protocols|engine\..*)|sasl\.(enabled\.mechanisms|jaas\.config)",
        ".*",
        "counts at start only: refused, not stored without effect",
    ),
    Known("brokers?", r"super\.users|allow\.everyone\..*", ".*", "counts at start only; unknown keys to Kafka's table"),
    Known(
        "brokers?",
        r"listener\.name\.[^.]*\.(.*\.)?(ssl\..*|.*sasl\..*|connections\.max\.reauth\.ms)",
        ".*",
        "a listener's security counts at start only: refused, and no password is stored",
    ),
    Known("broker", r"min\.insync\.replicas", ".*", "there are no eligible leader replicas (ELR), which forbid it"),
    Known(
        "brokers?",
        r"max\.connections\.per\.ip\.overrides",
        ".*",
        "what is not a host:number is refused by these words; an empty host and a count below 0 are refused too",
    ),
    Known(
        ".*", r"(log\.cleaner\.)?min\.cleanable\.(dirty\.)?ratio", "-?NaN", "such a log would never be cleaned: refused"
    ),
    Known(
        "topic|broker", ".*", "2e23", "Double.toString of Java 17 prints digits too many; Java 19 and this print 2.0E23"
    ),
    Known("brokers?", r"log\.roll\.(jitter\.)?ms", "(-.*|0)", "the same refusal in other words"),
    Known("broker", r"group\.\w+\.assignment\.interval\.ms", " 5 ", "Kafka stores it, and shows 1000"),
    Known("broker", r"listener\.name\.plaintext\.node\.id", "entry", "node.id has a default here"),
    Known(
        "brokers?",
        r"(.*\.)?\w+\.threads(\.per\.data\.dir)?",
        r"\d{5,}",
        "counts of threads have a bound here: other words",
    ),
    Known("broker", r"listener\.name\.plaintext\.num\.io\.threads", r"\d{5,}", "likewise; Kafka takes them"),
    Known("brokers?", r"log\.cleaner\.threads", "0", "Kafka divides by zero and gives no text"),
)

_WRAPPED = re.compile(
    r"Invalid value org\.apache\.kafka\.common\.config\.ConfigException: (.*) "
    r"for configuration Invalid dynamic configuration"
)


def without_java(outcome: Any) -> Any:
    """Return a refusal without the text that Java's exceptions put around its reason."""
    if isinstance(outcome, list) and outcome[1] is not None:
        text = _WRAPPED.sub(r"\1", outcome[1]).removeprefix("requirement failed: ")
        return [outcome[0], text]
    return outcome


def differences(resource: str) -> tuple[int, list[tuple[str, str, Any, Any]]]:
    """Return the number of tried values, and (config, value, Kafka's outcome, kbroker's) for each difference."""
    bench = make_bench(node_id=1, num_network_threads=3)  # independent of the cores of this machine
    prober = Prober(lambda key, body: bench.ask(*VERSIONS[key], body))
    prober.prepare()
    found = []
    count = 0
    for name, kafka in config_values.read()[resource].items():
        ours = prober.outcomes(resource, name, list(kafka["values"]))
        count += len(kafka["values"])
        for value, outcome in kafka["values"].items():
            if ours["values"][value] != without_java(outcome):
                found.append((name, value, without_java(outcome), ours["values"][value]))
        same_shown = [value for value, one in kafka["values"].items() if ours["values"][value] == one]
        raws = [{value: found.get("raw", {}).get(value) for value in same_shown} for found in (kafka, ours)]
        if raws[0] != raws[1]:
            found.append((name, "as typed", raws[0], raws[1]))
        if ours["entry"] and ours["entry"] != kafka["entry"]:
            found.append((name, "entry", kafka["entry"], ours["entry"]))
    return count, found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("resource", "tried", "agreeing"),
    [
        ("topic", 1239, 1236),
        ("broker", 2300, 2014),
        ("brokers", 1150, 994),
        ("client-metrics", 115, 115),
        ("group", 714, 714),
    ],
)
def test_values_are_taken_and_shown_as_by_kafka(resource: str, tried: int, agreeing: int) -> None:
    """Each value has Kafka's code, text and shown value, or is among the differences with a reason."""
    count, found = differences(resource)
    unknown = [
        one
        for one in found
        if not any(
            re.fullmatch(known.resources, resource)
            and re.fullmatch(known.names, one[0])
            and re.fullmatch(known.values, one[1])
            for known in KNOWN
        )
    ]
    assert unknown == []
    assert count == tried
    assert count - len(found) >= agreeing


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("PT0S", 0),
        ("PT1H", 3_600_000),
        ("P1DT2H3M4S", 93_784_000),
        ("+p+2d", 172_800_000),
        ("PT1.5S", 1500),
        ("PT0,0479S", 47),
        ("PT7.S", 7000),
    ],
)
def test_durations_are_those_of_java(text: str, milliseconds: int) -> None:
    """The duration of share.auto.offset.reset is read as by java.time.Duration, without parts of a millisecond."""
    assert duration_ms(text) == milliseconds
