"""Table of config values, each sent to a broker and described: whether it is accepted, and how it is shown.

``python -m tests.support.config_values HOST:PORT tests/support/kafka_config_values.json`` records the responses of
Apache Kafka; ``tests/unit/common/configs/test_config_values.py`` compares kbroker with the recording, without Java. The
names of the configs are those that the broker describes, so that a newer Kafka adds its new configs. Each value is
first sent with validate-only, then set, described and deleted.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RECORDING = Path(__file__).with_name("kafka_config_values.json")
TOPIC_NAME = "config-values"

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
SET, DELETE = 0, 1
IN_FORCE_S = 0.05  # Kafka shows the presence of a value a moment before the value itself
CREATE_TOPICS, DESCRIBE_CONFIGS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 19, 32, 33, 44

#: Type and name of each described resource.
RESOURCES = {
    "topic": (TOPIC, TOPIC_NAME),
    "broker": (BROKER, "1"),
    "brokers": (BROKER, ""),
    "client-metrics": (CLIENT_METRICS, "config-values"),
    "group": (GROUP, "config-values"),
}

#: Config source in DescribeConfigs of a value that is set on the resource itself.
_OWN_SOURCE = {(TOPIC, True): 1, (BROKER, True): 2, (BROKER, False): 3, (CLIENT_METRICS, True): 7, (GROUP, True): 8}

BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD = range(1, 10)

_NUMBERS = (
    "-9223372036854775809", "-9223372036854775808", "-2147483649", "-2147483648", "-3", "-2", "-1", "-0", "0", "+5",
    "1", "2", "3", "7", "12", "100", "101", "1000", "5000", "14000", "15000", "45000", "60000", "60001", "1048576",
    "2147483647", "2147483648", "9223372036854775807", "9223372036854775808",
    "", " ", " 5 ", "05", "5.0", "5L", "0x10", "1_000", "1e3", "abc", "٣", "\u00a05", "\t5\n", "- 5", "--5",
)  # fmt: skip
_DOUBLES = (
    "-Infinity", "-1", "-0.0", "0", "1e-400", "4.9e-324", "1e-5", "0.0001", "0.001", "0.1", "0.05", "0.3f", "0.5",
    "5e-1f", "5E-1D",
    "0x1p-1", "0x.8p0", "0x1.8P-1f", "0X1P+2", "0x1", ".5", "5.", "1.0", "1.1", "100", "1234567.0", "9999999",
    "1e7", "12345678.9", "1e21", "123456789012345678", "2e23", "1e400", "Infinity", "+Infinity", "NaN", "-NaN", "nan",
    "inf", "infinity", "", " ", " 0.5 ", "0,5", "1_0", "abc", "٣", "0.5L", "1e", "e5", ".", "2.2250738585072014E-308",
    "1.7976931348623157e308",
)  # fmt: skip
_BOOLEANS = ("true", "false", "TRUE", "False", " true ", "yes", "no", "1", "0", "on", "", " ", "abc", "null")
_WORDS = ("", " ", "x", " x ", "true", "1", "a,b", "a,a", " a , b ", ",", "a,", ",a", "*", "0:1", "0:1,1:1", "0:a", "é")

_OF_BROKER = (
    "-9223372036854775808", "-2147483649", "-3", "-2", "-1", "0", "1", "2", "3", "7", "100", "1000", "14000", "1048576",
    "2147483647", "2147483648", "9223372036854775807", "", " 5 ", "+5", "0x10", "abc",
    "true", "TRUE", " false ", "yes", "x", " x ", "a,a", " a , b ", ",",
)  # fmt: skip
_OF_BROKERS = (
    "-2", "-1", "0", "7", "1000", "1048576", " 5 ", "abc", "true", "FALSE", "", "x", "a,a", "1e-5", "5e-1f", "0.5",
)  # fmt: skip

#: Values that are valid for some configs and invalid for others.
_OF_KEY: Mapping[str, Sequence[str]] = {
    "cleanup.policy": ("delete", "compact", "delete,compact", "compact, delete", "delete,delete", "Delete", " delete ",
                       "delete,", "delete,x", "none"),
    "compression.type": ("producer", "gzip", "GZIP", " lz4 ", "zstd", "snappy", "uncompressed", "none"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "createtime", " LogAppendTime "),
    "throttled.replicas": ("*,0:1", "0:1,", "0:1,0:1", " 0:1 , 1:1 ", "-1:1", "0:1:2", ":", "0:", ":1", "* "),
    "offset.reset": ("latest", "earliest", "LATEST", "none", "by_duration:PT1H", "by_duration:P1DT2H", "by_duration:",
                     "by_duration:-PT1H", "by_duration:x", "by_duration:PT0S", "by_duration:pt1h", " earliest ",
                     "BY_DURATION:PT1H", "by_duration:P1M", "by_duration:PT1.5S", "by_duration"),
    "isolation.level": ("read_committed", "read_uncommitted", "READ_COMMITTED", " read_committed "),
    "interval.ms": ("99", "100", "3600000", "3600001"),
    "match": ("client_id=a", "client_id=[", "client_id=a,client_source_address=1.*", "client_instance_id=.*", "x=y",
              "client_id", "client_id=", "=a", "client_id=a=b", "client_software_name=a,client_software_version=1",
              "client_source_port=1", " client_id = a ", "client_id=a,", "CLIENT_ID=a", "client_id=a,client_id=b",
              "client_id=(?<n>a)", "client_id=a{2,", "client_id=*", "client_id=\\d+"),
    "metrics": ("org.apache.kafka.", "org.apache.kafka.a,org.apache.kafka.b", "*,x", "a,a"),
    "overrides": ("a:1", "127.0.0.1:5", "127.0.0.1:x", "127.0.0.1:5,127.0.0.2:6", "127.0.0.1:-1", ":5", "[::1]:4",
                  "127.0.0.1", "localhost:3", "127.0.0.1:5,127.0.0.1:6"),
    "compression.gzip.level": ("9", "10"), "compression.lz4.level": ("17", "18", "9"),
    "compression.zstd.level": ("-131072", "-131073", "22", "23"),
    "dedupe.buffer.size": ("1048575", "1048577", "4194304"),
    "ssl.keystore.type": ("PEM", "JKS"), "ssl.client.auth": ("required", "requested", "none"),
}  # fmt: skip

#: Configs that no broker describes, with the type whose values are tried.
_BEYOND: Mapping[str, int] = {
    "nosuch.key": STRING, "nosuch.password": STRING, "super.users": STRING, "password.encoder.secret": STRING,
    "follower.replication.throttled.rate": LONG, "leader.replication.throttled.rate": LONG,
    "replica.alter.log.dirs.io.max.bytes.per.second": LONG,
    "listener.name.plaintext.ssl.keystore.location": STRING, "listener.name.plaintext.ssl.keystore.type": STRING,
    "listener.name.plaintext.ssl.keystore.password": PASSWORD, "listener.name.nosuch.ssl.keystore.password": PASSWORD,
    "listener.name.plaintext.nosuch": STRING, "listener.name.plaintext.max.connections": INT,
    "listener.name.plaintext.max.connection.creation.rate": INT, "listener.name.plaintext.num.io.threads": INT,
    "listener.name.plaintext.plain.sasl.jaas.config": PASSWORD, "listener.name.plaintext.node.id": INT,
    "listener.name.plaintext.connections.max.reauth.ms": LONG, "listener.name.plaintext.log.retention.ms": LONG,
    "listener.name.plaintext.plain.connections.max.reauth.ms": LONG, "listener.name.": STRING,
    "LOG.RETENTION.MS": LONG, "log.retention.ms ": LONG, "": STRING, "retention.ms": LONG,
}  # fmt: skip

#: Values that would change the listeners or the memory of the broker are only validated.
_NOT_FOR_REAL = ("num.network.threads", "listeners", "listener.security.protocol.map", "cordoned.log.dirs")
_SIZES = ("log.cleaner.dedupe.buffer.size", "log.cleaner.io.buffer.size", "log.cleaner.threads")

Ask = Callable[[int, dict[str, Any]], dict[str, Any]]
Recording = dict[str, dict[str, dict[str, Any]]]


def values_of(resource: str, name: str, kind: int, is_read_only: bool) -> list[str]:
    """Return the values to try for a config of this type; one is enough for a read-only config, which refuses all.

    The parsing of texts is tried on topics, groups and subscriptions; on brokers, mostly the limits of ranges are.
    """
    if is_read_only:
        return ["1"]
    of_type = {BOOLEAN: _BOOLEANS, DOUBLE: _DOUBLES, INT: _NUMBERS, SHORT: _NUMBERS, LONG: _NUMBERS}.get(kind, _WORDS)
    more = [word for part, words in _OF_KEY.items() if name.endswith(part) for word in words]
    if resource == "broker" and kind != DOUBLE:
        of_type = tuple(word for word in of_type if word in _OF_BROKER)
    elif resource == "brokers":
        of_type = tuple(word for word in of_type if word in _OF_BROKERS)
    return list(dict.fromkeys([*of_type, *more]))


class Prober:
    """Prober of one broker.

    Args: ``ask``: function that sends a body by API key and returns the response's body; ``settle_s``: maximum time
    until a change is visible.
    """

    def __init__(self, ask: Ask, settle_s: float = 0) -> None:
        self._ask = ask
        self._settle_s = settle_s
        self._hidden: set[str] = set()  # accepted but not shown: no need to wait again

    def prepare(self) -> None:
        """Create the topic whose configs are tried."""
        self._ask(CREATE_TOPICS, _topic_body(TOPIC_NAME, {}, validate_only=False))
        if self._settle_s:
            time.sleep(1)

    def record(self, resource: str) -> dict[str, dict[str, Any]]:
        """Return every config of a resource with the responses to all its values."""
        return {name: self.outcomes(resource, name, values) for name, values in self._cases(resource)}

    def outcomes(self, resource: str, name: str, values: Iterable[str]) -> dict[str, Any]:
        """Return the response to each value: the value shown, or error and message.

        The value shown is None if there is no value or it is hidden. ``entry``: flags of the config as shown. ``raw``:
        values that the first synonym shows in another form.
        """
        found: dict[str, Any] = {"entry": None, "values": {}}
        for value in values:
            outcome, entry = self._one(resource, name, value)
            found["values"][value] = outcome
            if entry is not None:
                flags = [entry["ConfigType"], entry["ReadOnly"], entry["IsSensitive"], entry["ConfigSource"]]
                chain = [[one["Name"], one["Source"]] for one in entry["Synonyms"]]
                found["entry"] = found["entry"] or [*flags, chain]
                raw = entry["Synonyms"][0]["Value"] if entry["Synonyms"] else None
                if raw != entry["Value"]:
                    found.setdefault("raw", {})[value] = raw
        return found

    def _cases(self, resource: str) -> Iterator[tuple[str, list[str]]]:
        kind, name = RESOURCES[resource]
        rows = self._describe(kind, name or "1")
        for row in sorted(rows.values(), key=lambda row: str(row["Name"])):
            yield row["Name"], values_of(resource, row["Name"], row["ConfigType"], row["ReadOnly"])
        beyond = _BEYOND if kind == BROKER else {"nosuch.key": STRING, "": STRING, "Retention.ms": STRING}
        for key, of_type in beyond.items():
            if key not in rows:
                yield key, values_of("brokers", key, of_type, False)

    def _one(self, resource: str, name: str, value: str) -> tuple[Any, dict[str, Any] | None]:
        kind, of = RESOURCES[resource]
        checked = self._alter(kind, of, name, SET, value, validate_only=True)
        replaced = self._replace(kind, of, name, value)
        if checked[0] != replaced[0]:
            return {"incremental": checked, "replacing": replaced}, None
        if kind == TOPIC:
            created = self._create(name, value)
            if created[0] != checked[0]:
                return {"incremental": checked, "creating": created}, None
        if checked[0]:
            return checked, None
        if name in _NOT_FOR_REAL or (name in _SIZES and len(value) > 7) or _closes_connections(name, value):
            return "accepted", None
        done = self._alter(kind, of, name, SET, value, validate_only=False)
        if done[0]:
            return {"validate only": checked, "for real": done}, None
        entry = self._shown(kind, of, name)
        self._alter(kind, of, name, DELETE, None, validate_only=False)
        if self._settle_s:
            self._gone(kind, of, name)
        if entry is None:
            self._hidden.add(name)
            return "not shown", None
        return {"shown": entry["Value"]}, entry

    def _shown(self, kind: int, of: str, name: str) -> dict[str, Any] | None:
        """Return the entry once the resource has its own value and the broker has had time to apply it."""
        found: dict[str, Any] | None = self._wait(
            lambda: self._own(kind, of, name), 0.05 if name in self._hidden else 1
        )
        if found is None or not self._settle_s:
            return found
        time.sleep(IN_FORCE_S)
        return self._own(kind, of, name)

    def _gone(self, kind: int, of: str, name: str) -> None:
        self._wait(lambda: True if self._own(kind, of, name) is None else None)

    def _own(self, kind: int, of: str, name: str) -> dict[str, Any] | None:
        entry = self._describe(kind, of, name).get(name)
        return entry if entry is not None and entry["ConfigSource"] == _OWN_SOURCE[kind, bool(of)] else None

    def _wait(self, look: Callable[[], Any], share: float = 1) -> Any:
        """Return the first result of ``look`` that is not None, or None at the end of this share of the time."""
        deadline = time.monotonic() + share * self._settle_s
        while (found := look()) is None and time.monotonic() < deadline:
            time.sleep(0.005)
        return found

    def _describe(self, kind: int, of: str, key: str | None = None) -> dict[str, dict[str, Any]]:
        resource = {"ResourceType": kind, "ResourceName": of, "ConfigurationKeys": [key] if key else None}
        body = {"Resources": [resource], "IncludeSynonyms": True, "IncludeDocumentation": False}
        (result,) = self._ask(DESCRIBE_CONFIGS, body)["Results"]
        if result["ErrorCode"]:
            raise ValueError(f"cannot describe {of}: {result['ErrorCode']} {result['ErrorMessage']}")
        return {row["Name"]: row for row in result["Configs"]}

    def _alter(
        self, kind: int, of: str, name: str, operation: int, value: str | None, validate_only: bool
    ) -> list[Any]:
        rows = [{"Name": name, "ConfigOperation": operation, "Value": value}]
        return self._altered(INCREMENTAL_ALTER_CONFIGS, kind, of, rows, validate_only)

    def _replace(self, kind: int, of: str, name: str, value: str) -> list[Any]:
        rows = [{"Name": name, "Value": value}]
        if kind == BROKER and not of and name != "min.insync.replicas":  # Kafka does not allow its removal
            rows.append({"Name": "min.insync.replicas", "Value": "1"})
        return self._altered(ALTER_CONFIGS, kind, of, rows, True)

    def _altered(self, api: int, kind: int, of: str, rows: list[dict[str, Any]], validate_only: bool) -> list[Any]:
        body = {
            "Resources": [{"ResourceType": kind, "ResourceName": of, "Configs": rows}],
            "ValidateOnly": validate_only,
        }
        (response,) = self._ask(api, body)["Responses"]
        return [response["ErrorCode"], response["ErrorMessage"]]

    def _create(self, name: str, value: str) -> list[Any]:
        (response,) = self._ask(CREATE_TOPICS, _topic_body("config-values-new", {name: value}, True))["Topics"]
        return [response["ErrorCode"], response["ErrorMessage"]]


def _closes_connections(name: str, value: str) -> bool:
    return name.endswith("max.connections") and len(value.strip()) < 3


def _topic_body(topic: str, configs: Mapping[str, str], validate_only: bool) -> dict[str, Any]:
    rows = [{"Name": name, "Value": value} for name, value in configs.items()]
    row = {"Name": topic, "NumPartitions": 1, "ReplicationFactor": 1, "Configs": rows}
    return {"Topics": [row], "timeoutMs": 5000, "validateOnly": validate_only}


def write(recording: Recording) -> str:
    """Return JSON with a config a line; messages are numbered and contain {value} and {name} as placeholders."""
    texts: dict[str, int] = {}

    def packed(name: str, value: str, outcome: Any) -> Any:
        if isinstance(outcome, dict) and set(outcome) == {"shown"}:
            return 1 if outcome["shown"] == value else outcome
        if isinstance(outcome, list) and outcome[1] is not None:
            text = outcome[1].replace("{", "{{").replace("}", "}}")
            text = text.replace(name or "{}", "{name}").replace(f" {value} ", " {value} ")
            return [outcome[0], texts.setdefault(text, len(texts))]
        return outcome

    parts = []
    for resource, configs in recording.items():
        lines = []
        for name, found in configs.items():
            values = {value: packed(name, value, outcome) for value, outcome in found["values"].items()}
            lines.append(f"{json.dumps(name)}: {json.dumps({**found, 'values': values})}")
        parts.append(f"{json.dumps(resource)}: {{\n" + ",\n".join(lines) + "\n}")
    parts.insert(0, '"texts": [\n' + ",\n".join(json.dumps(text) for text in texts) + "\n]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def read(path: Path = RECORDING) -> Recording:
    """Return the recorded responses of a broker."""
    recording = json.loads(path.read_text(encoding="utf-8"))
    texts = recording.pop("texts")

    def unpacked(name: str, value: str, outcome: Any) -> Any:
        if outcome == 1:
            return {"shown": value}
        if isinstance(outcome, list) and outcome[1] is not None:
            return [outcome[0], texts[outcome[1]].format(name=name or "{}", value=value)]
        return outcome

    for configs in recording.values():
        for name, found in configs.items():
            found["values"] = {value: unpacked(name, value, one) for value, one in found["values"].items()}
    return dict(recording)


def main() -> None:
    """Record the responses of the broker named on the command line: all resources, or the named ones."""
    from kbroker.client.cluster import Cluster

    address, path, *resources = sys.argv[1:]
    with Cluster(address) as cluster:
        prober = Prober(lambda key, body: cluster.request(key, body), settle_s=1)
        prober.prepare()
        for resource in resources or RESOURCES:
            began = time.monotonic()
            found = prober.record(resource)
            file = Path(path)
            file.write_text(write({**(read(file) if file.exists() else {}), resource: found}), encoding="utf-8")
            count = sum(len(one["values"]) for one in found.values())
            print(f"{resource}: {count} values in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
