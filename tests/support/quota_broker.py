"""Scripted broker that stores client quotas and refuses changes of topics with error 89 as often as a test sets."""

from tests.support.fake_broker import Body, FakeBroker

CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 19, 20, 37
DESCRIBE, ALTER = 48, 49

Key = tuple[tuple[str, str | None], ...]


class QuotaBroker(FakeBroker):
    """Broker that stores quotas, refuses keys in `unknown_keys`, and refuses topic changes `refusals` times."""

    def __init__(self) -> None:
        super().__init__()
        self.quotas: dict[Key, dict[str, float]] = {}
        self.unknown_keys: set[str] = set()
        self.refusals = 0
        self.more_nodes = 0
        self.throttle_time_ms = 2345
        self.handlers |= {
            DESCRIBE: self.describe,
            ALTER: self.alter,
            CREATE_TOPICS: self.create_topics,
            DELETE_TOPICS: self.delete_topics,
            CREATE_PARTITIONS: self.create_partitions,
        }

    def metadata(self, version: int, body: Body) -> Body:
        response = super().metadata(version, body)
        (own,) = response["Brokers"]
        response["Brokers"] = [{**own, "NodeId": own["NodeId"] + i} for i in range(1 + self.more_nodes)]
        return response

    def describe(self, version: int, body: Body) -> Body:
        wanted = {row["EntityType"]: row["Match"] for row in body["Components"]}
        entries = [
            {
                "Entity": [{"EntityType": kind, "EntityName": name} for kind, name in key],
                "Values": [{"Key": k, "Value": v} for k, v in values.items()],
            }
            for key, values in self.quotas.items()
            if wanted.items() <= dict(key).items() and (not body["Strict"] or len(wanted) == len(key))
        ]
        return {"ErrorCode": 0, "ErrorMessage": "", "Entries": entries}

    def alter(self, version: int, body: Body) -> Body:
        responses = []
        for entry in body["Entries"]:
            key = tuple((part["EntityType"], part["EntityName"]) for part in entry["Entity"])
            bad = [op["Key"] for op in entry["Ops"] if op["Key"] in self.unknown_keys and not op["Remove"]]
            text = f"Invalid configuration key {bad[0]}" if bad else None
            responses.append({"ErrorCode": 42 if bad else 0, "ErrorMessage": text, "Entity": entry["Entity"]})
            if bad or body["ValidateOnly"]:
                continue
            values = self.quotas.setdefault(key, {})
            for op in entry["Ops"]:
                if op["Remove"]:
                    values.pop(op["Key"], None)
                else:
                    values[op["Key"]] = op["Value"]
            if not values:
                del self.quotas[key]
        return {"Entries": responses}

    def _code(self) -> int:
        self.refusals -= 1
        return 89 if self.refusals >= 0 else 0

    def _response(self, field: str, row: Body) -> Body:
        code = self._code()
        throttle_time_ms = self.throttle_time_ms if code else 0
        return {"ThrottleTimeMs": throttle_time_ms, field: [{**row, "ErrorCode": code, "ErrorMessage": None}]}

    def create_topics(self, version: int, body: Body) -> Body:
        row = {"Name": body["Topics"][0]["Name"], "NumPartitions": 1, "ReplicationFactor": 1}
        return self._response("Topics", row)

    def delete_topics(self, version: int, body: Body) -> Body:
        name = body["Topics"][0]["Name"] if version >= 6 else body["TopicNames"][0]
        return self._response("Responses", {"Name": name})

    def create_partitions(self, version: int, body: Body) -> Body:
        return self._response("Results", {"Name": body["Topics"][0]["Name"]})
