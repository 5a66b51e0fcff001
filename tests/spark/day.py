"""Day of request-log rows with known results: seeded, the same on every machine, computed without Spark.

`make_day()` returns the rows (a flat Arrow table in their order of arrival), the same rows as JSON lines, and the
results expected of the jobs. The day has: thirty entities, the first of which sent `hot_share` of all rows; idle
fetches folded into one row; delays of one and of two quotas, refusals, refused connections; mutations; rows exactly on
the borders of hours; rows that arrive hours late; rows of version 0, which lack the newer columns; rows of a real
Kafka, which have neither sizes nor verdicts.
"""

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa

from kbroker.common.request_log import COLUMNS, Column
from kbroker.spark.tables.log_schema import arrow_schema, is_milliseconds

DATE = "2026-01-02"
START_US = int(datetime(2026, 1, 2, tzinfo=timezone.utc).timestamp()) * 1_000_000
HOUR_US, DAY_US = 3_600_000_000, 86_400_000_000
# Kinds of rows: of this version, of version 0, of Kafka, a lone verdict, a refusal.
OURS, OLD, KAFKA, CONNECTION, REFUSAL = 0, 1, 2, 3, 4
APIS = ((0, "PRODUCE"), (1, "FETCH"), (3, "METADATA"), (19, "CREATE_TOPICS"))
#: Columns that version 0 lacks.
NEWER = (
    *("network_time_us", "sampling", "repeated", "software_name", "software_version", "listener"),
    "transactional_id",
)
#: Columns of refusals alone.
REFUSED = ("refusal", "refused_api_key", "refused_api_version")
#: Columns that a real Kafka does not log.
NOT_KAFKA = (
    *("broker", "sequence", "address", "request_bytes", "response_bytes", "network_time_us", "error_code"),
    *("error_count", "sampling", "repeated", "verdicts", "updates"),
)


@dataclass(frozen=True)
class Day:
    """Rows in order of arrival, and the kind of each; `late` marks rows that arrive hours after their time."""

    rows: pa.Table
    kinds: np.ndarray
    late: np.ndarray

    def lines(self) -> Iterator[str]:
        """Yield each row as a line of a file: JSON, or the line of a real Kafka's log4j."""
        for row, kind in zip(self.rows.to_pylist(), self.kinds, strict=True):
            yield to_line(row, int(kind))

    def lines_before(self, hour: int) -> list[str]:
        """Return the lines of the day's first hours, which take few files of a table."""
        return [line for line, time in zip(self.lines(), self.columns["time"], strict=True) if time.hour < hour]

    @functools.cached_property
    def columns(self) -> dict[str, Any]:
        """Return every column as a list."""
        return dict(self.rows.to_pydict())

    @functools.cached_property
    def usage(self) -> dict[tuple[str | None, str | None], dict[str, float]]:
        """Return the use of each (principal, client id): sums of the day, and the highest second of each."""
        found: dict[tuple[str | None, str | None], dict[str, float]] = {}
        seconds: dict[tuple[Any, ...], dict[str, float]] = {}
        connected: dict[tuple[Any, ...], int] = {}
        c = self.columns
        second = np.asarray(self.rows["time"].cast(pa.int64())) // 1_000_000
        for i in range(self.rows.num_rows):
            if c["api_key"][i] is None:
                continue
            entity = (c["principal"][i], c["client_id"][i])
            weight = 1 / (c["sampling"][i] or 1.0)
            used = {
                "requests": (c["repeated"][i] or 1) * weight,
                "request_bytes": (c["request_bytes"][i] or 0) * weight,
                "response_bytes": (c["response_bytes"][i] or 0) * weight,
                "request_time_us": (
                    (c["local_time_us"][i] or 0) * (c["repeated"][i] or 1) + (c["network_time_us"][i] or 0)
                )
                * weight,
                "mutations": sum(u["value"] for u in c["updates"][i] or () if u["quota_type"] == "ControllerMutation"),
            }
            for place in (found.setdefault(entity, {}), seconds.setdefault((*entity, second[i]), {})):
                for name, value in used.items():
                    place[name] = place.get(name, 0) + value
            link = (*entity, c["connection"][i])
            connected[link] = min(connected.get(link, second[i]), second[i])
        for (principal, client_id, _), used in seconds.items():
            sums = found[principal, client_id]
            for name, value in used.items():
                sums[f"{name}_peak"] = max(sums.get(f"{name}_peak", 0), value)
        opened: dict[tuple[Any, ...], int] = {}
        for (principal, client_id, _), first in connected.items():
            sums = found[principal, client_id]
            sums["connections"] = sums.get("connections", 0) + 1
            opened[principal, client_id, first] = opened.get((principal, client_id, first), 0) + 1
        for (principal, client_id, _), count in opened.items():
            sums = found[principal, client_id]
            sums["connections_peak"] = max(sums.get("connections_peak", 0), count)
        return found

    @functools.cached_property
    def throttles(self) -> dict[tuple[Any, ...], dict[str, int]]:
        """Return counts of verdicts and refusals and sums of delays in ms, by (quota type, user, client id, ip).

        A delay of a real Kafka's row, which has no verdict, counts under quota type None.
        """
        found: dict[tuple[Any, ...], dict[str, int]] = {}
        c = self.columns
        for i in range(self.rows.num_rows):
            verdicts = c["verdicts"][i] or []
            if not verdicts and c["throttle_time_ms"][i]:
                delay = c["throttle_time_ms"][i]
                verdicts = [
                    {
                        "quota_type": None,
                        "user": c["principal"][i],
                        "client_id": c["client_id"][i],
                        "ip": None,
                        "delay_asked_ms": 0,
                        "delay_served_ms": delay,
                        "refused": False,
                    }
                ]
            for v in verdicts:
                key = (v["quota_type"], v["user"], v["client_id"], v["ip"])
                sums = found.setdefault(
                    key, {"verdicts": 0, "refused": 0, "delay_asked_ms": 0, "delay_served_ms": 0, "delay_max_ms": 0}
                )
                sums["verdicts"] += 1
                sums["refused"] += bool(v["refused"])
                sums["delay_asked_ms"] += v["delay_asked_ms"]
                sums["delay_served_ms"] += v["delay_served_ms"]
                sums["delay_max_ms"] = max(sums["delay_max_ms"], v["delay_served_ms"])
        return found


@functools.lru_cache(maxsize=2)
def make_day(rows: int = 20_000, seed: int = 7, entities: int = 30, hot_share: float = 0.6) -> Day:
    """Return the day; `rows` is at least 1,000, and `hot_share` the first entity's share, 0..1."""
    rng = np.random.default_rng(seed)
    who = np.where(rng.random(rows) < hot_share, 0, rng.integers(1, entities, rows))
    api = rng.choice(4, rows, p=[0.45, 0.4, 0.13, 0.02])
    kind = rng.choice([OURS, OLD, KAFKA, CONNECTION, REFUSAL], rows, p=[0.89, 0.04, 0.05, 0.01, 0.01])
    time = START_US + rng.integers(0, DAY_US, rows)
    border = rng.random(rows) < 0.002  # the first and the last microsecond of an hour
    time = np.where(border, START_US + rng.integers(0, 24, rows) * HOUR_US + rng.choice([0, HOUR_US - 1], rows), time)
    time = np.where(kind == KAFKA, time // 1000 * 1000, time)  # log4j has milliseconds
    late = rng.random(rows) < 0.01
    order = np.argsort(np.where(late, time + 5 * HOUR_US, time), kind="stable")
    who, api, kind, time, late = who[order], api[order], kind[order], time[order], late[order]
    size = rng.integers(60, 100_000, rows)
    response = rng.integers(20, 50_000, rows)
    spans = rng.integers(1, 20_000, (7, rows))
    delay = rng.integers(1, 3_000, rows)
    chance = rng.random(rows)
    folded = np.where((api == 1) & (rng.random(rows) < 0.1), rng.integers(2, 50, rows), 1)
    links = rng.integers(0, 40, rows)
    made = [
        _row(i, int(who[i]), int(api[i]), int(kind[i]), int(time[i]), float(chance[i]), int(delay[i]))
        | {
            "connection": f"10.0.{who[i]}.1:{40_000 + links[i]}-127.0.0.1:9092-{links[i]}",
            "request_bytes": int(size[i]),
            "response_bytes": int(response[i]),
            "repeated": int(folded[i]),
            **{name: int(spans[k][i]) for k, name in enumerate(_SPANS)},
        }
        for i in range(rows)
    ]
    return Day(
        pa.Table.from_pylist([_as(row, int(k)) for row, k in zip(made, kind, strict=True)], arrow_schema()), kind, late
    )


_SPANS = (
    *("request_queue_time_us", "local_time_us", "remote_time_us", "response_queue_time_us", "send_time_us"),
    *("total_time_us", "network_time_us"),
)


def _row(i: int, who: int, api: int, kind: int, time: int, chance: float, delay: int) -> dict[str, Any]:
    """Return a row of this version without its sizes and times."""
    user, client_id = f"team-{who % 7}", f"app-{who:02d}"
    verdicts: list[dict[str, Any]] = []
    quota = ("Produce", "Fetch", "Request", "ControllerMutation")[api]
    if kind == CONNECTION:
        verdicts = [verdict("ConnectionRate", "", "", delay, delay, ip=f"10.0.{who}.1", level=0)]
    elif api == 3 and chance < 0.2:
        verdicts = [verdict(quota, user, "", delay, 0, refused=True)]
    elif chance < 0.02:
        verdicts = [verdict(quota, user, client_id, delay, min(delay, 1_000))]
    elif chance < 0.03:  # of two quotas, the longer delay is served and the other adds nothing
        verdicts = [verdict("Request", user, "", delay // 2, 0, level=3), verdict(quota, user, client_id, delay, delay)]
    values = [("Request", chance * 5)] if api == 2 else [(quota, float(i % 4 + 1) if api == 3 else chance * 1e5)]
    return {
        "time": datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=time),
        "broker": 1,
        "sequence": i + 1,
        "api_key": APIS[api][0],
        "api_version": 9,
        "api_name": APIS[api][1],
        "correlation_id": i,
        "client_id": client_id,
        "transactional_id": f"txn-{who}" if api == 0 and i % 3 == 0 else None,
        "address": f"10.0.{who}.1",
        "principal": f"User:{user}",
        "listener": "PLAINTEXT",
        "security_protocol": "PLAINTEXT",
        "software_name": "apache-kafka-java",
        "software_version": "4.3.1",
        "throttle_time_ms": max((v["delay_served_ms"] for v in verdicts), default=0),
        "error_code": 89 if verdicts and verdicts[0]["refused"] else 0,
        "error_count": 1 if verdicts and verdicts[0]["refused"] else 0,
        "sampling": 1.0,
        **dict.fromkeys(REFUSED),
        "verdicts": verdicts,
        "updates": [
            {
                "quota_type": kind_of,
                "user": user,
                "client_id": client_id,
                "sequence": i + 1,
                "time_ms": time // 1000,
                "value": round(value, 3),
                "checked": True,
            }
            for kind_of, value in values
        ],
    }


def verdict(
    quota_type: str,
    user: str,
    client_id: str,
    asked: int,
    served: int,
    *,
    ip: str | None = None,
    level: int = 1,
    refused: bool = False,
) -> dict[str, Any]:
    """Return one entry of `verdicts`."""
    return {
        "quota_type": quota_type,
        "user": user,
        "client_id": client_id,
        "ip": ip,
        "level": level,
        "observed": 2_000.5,
        "limit": 1_000.0,
        "window_ms": 11_000,
        "delay_asked_ms": asked,
        "delay_served_ms": served,
        "refused": refused,
        "sequence": None if ip else asked + 1,
        "time_ms": START_US // 1000 + asked,
    }


def _as(row: dict[str, Any], kind: int) -> dict[str, Any]:
    """Return the row as a row of its kind, with null for the columns that the kind lacks."""
    if kind == OLD:
        return {**row, **dict.fromkeys(NEWER)}
    if kind == KAFKA:
        delay = row["throttle_time_ms"]
        return {**row, **dict.fromkeys(NOT_KAFKA), "throttle_time_ms": delay}
    if kind == CONNECTION:
        kept = ("time", "broker", "sequence", "address", "listener", "sampling", "verdicts")
        return {name: row.get(name) if name in kept else None for name in row} | {"updates": []}
    if kind == REFUSAL:
        known = ("time", "broker", "sequence", "connection", "address", "listener", "sampling", "repeated")
        refused = {"refusal": "unsupported-version", "refused_api_key": row["api_key"], "refused_api_version": 99}
        return (
            {name: row.get(name) if name in known else None for name in row} | {"verdicts": [], "updates": []} | refused
        )
    return row


def to_line(row: dict[str, Any], kind: int = OURS) -> str:
    """Return a row as the line of a file."""
    record: dict[str, Any] = {} if kind == KAFKA else {"version": 0 if kind == OLD else 3}
    for column in COLUMNS:
        if row[column.name] is not None and not (kind == KAFKA and column.name == "time"):
            _put(record, column, row[column.name])
    if kind != KAFKA:
        return json.dumps(record)
    stamp = row["time"].strftime("%Y-%m-%d %H:%M:%S,") + f"{row['time'].microsecond // 1000:03d}"
    whole = {
        "isForwarded": False,
        **record,
        "request": {"transactionalId": row["transactional_id"], "acks": -1, "timeoutMs": 30_000},
        "response": {"responses": []},
    }
    return f"[{stamp}] DEBUG Completed request:{json.dumps(whole)} (kafka.request.logger)"


def _put(record: dict[str, Any], column: Column, value: Any) -> None:
    *outer, leaf = column.json.split(".")
    for part in outer:
        record = record.setdefault(part, {})
    if column.fields:
        value = [{f.json: v[f.name] for f in column.fields if v[f.name] is not None} for v in value]
    elif column.name == "time":
        value = value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    elif is_milliseconds(column):
        value = value / 1000
    record[leaf] = value
