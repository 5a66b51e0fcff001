"""ApiVersions, frames, headers, and reasons why a connection is closed."""

import struct

from kbroker.protocol.schema import api_by_name, apis
from tests.conformance.batches import batch
from tests.conformance.bodies import fetch, produce
from tests.conformance.codec import encoded, request
from tests.conformance.run import situation
from tests.conformance.talk import Talk
from tests.support.wire import header

OF_CLIENTS = [api.name for api in sorted(apis().values()) if api.tier <= 2]
EVERYDAY = [api.name for api in sorted(apis().values()) if api.tier == 1]
OWN_KEY = {"ApiKeys": lambda row: row["ApiKey"] == 18}
METADATA = 3
NO_TOPICS = struct.pack(">i", 0)


@situation("ApiVersions", "0-4")
def asked_twice(talk: Talk) -> None:
    """Request ApiVersions twice, for the form of the response; other situations compare the ranges of each API."""
    for note in ("once", "again"):
        talk.ask({"ClientSoftwareName": "a", "ClientSoftwareVersion": "1"}, note, only=OWN_KEY)


@situation("ApiVersions", over=OF_CLIENTS)
def range_of(talk: Talk, name: str) -> None:
    """Request the version range of an API that the broker has, in three versions."""
    talk.need(name)
    for version in (0, 3, 4):
        body = {"ClientSoftwareName": "a", "ClientSoftwareVersion": "1"}
        talk.also("ApiVersions", version, body, only={"ApiKeys": lambda row: row["ApiKey"] == api_by_name(name).key})


@situation("ApiVersions", over=("5", "6", "99", "32767", "-1"))
def version_of_api_versions(talk: Talk, version: str) -> None:
    """Request an unknown version of ApiVersions, whose response has version 0 and the range."""
    body = b"\x02a\x021\0"
    frame = header(18, int(version), 7, flexible=True) + body
    talk.send_bytes(frame, f"version {version}", read_as=("ApiVersions", 0))
    talk.also("ApiVersions", 0, {}, only=OWN_KEY)


@situation("ApiVersions", "3-4")
def names_of_software(talk: Talk) -> None:
    """Send empty software names and versions, and names with unusual characters."""
    rows = (("", "1"), ("a", ""), ("a b", "1"), ("-a", "1"), ("a.b-c", "1.0-rc.1"), ("ümlaut", "1"))
    for name, version in rows:
        body = {"ClientSoftwareName": name, "ClientSoftwareVersion": version}
        talk.ask(body, f"{name!r} {version!r}", only=OWN_KEY)


@situation("Framing", over=("999", "-1", "6", "4", "83"))
def keys_nobody_has(talk: Talk, key: str) -> None:
    """Send API keys that do not exist or that only brokers use among themselves."""
    talk.send_bytes(header(int(key), 0) + bytes(20), f"key {key}")


OUT_OF_RANGE = (
    *("Produce 2", "Produce 14", "Fetch 3", "Fetch 19", "ListOffsets 0", "Metadata 14", "Metadata -1"),
    *("OffsetCommit 1", "OffsetFetch 0", "CreateTopics 1", "CreateTopics 8", "DeleteTopics 0", "DescribeConfigs 0"),
    *("InitProducerId 6", "JoinGroup 10", "DeleteGroups 3", "TxnOffsetCommit 6"),
)


@situation("Framing", over=OUT_OF_RANGE)
def versions_nobody_has(talk: Talk, what: str) -> None:
    """Send versions that do not exist, for which the connection is closed."""
    name, version = what.split()
    talk.send_bytes(header(api_by_name(name).key, int(version)) + bytes(60), what)


ONE_TOPIC = header(METADATA, 1) + struct.pack(">ih", 1, 3) + b"abc"
BROKEN = {
    "half a header": ONE_TOPIC[:5],
    "header without client id": ONE_TOPIC[:8],
    "no body": header(METADATA, 1),
    "half a body": ONE_TOPIC[:-2],
    "count": header(METADATA, 1) + struct.pack(">i", 2**31 - 1),
    "length of a string": header(METADATA, 1) + struct.pack(">ih", 1, 32_767) + b"abc",
    "string below zero": header(METADATA, 1) + struct.pack(">ih", 1, -1),
    "more behind it": header(METADATA, 1) + NO_TOPICS + b"more",
}


@situation("Framing", over=BROKEN)
def broken_body(talk: Talk, what: str) -> None:
    """Send a body that is too short or has wrong lengths."""
    talk.send_bytes(BROKEN[what], what, read_as=("Metadata", 1))


@situation("Framing")
def text_that_is_none(talk: Talk) -> None:
    """Send a name that is not UTF-8."""
    talk.send_bytes(header(METADATA, 4) + struct.pack(">ih", 1, 2) + b"\xff\xfe\0", "metadata", read_as=("Metadata", 4))


@situation("Framing", over=EVERYDAY)
def last_byte_is_missing(talk: Talk, name: str) -> None:
    """Send the shortest body of an API's newest version, without its last byte."""
    version = api_by_name(name).advertised_versions[1]
    talk.need(name, version)
    talk.send_bytes(request(name, version, {})[:-1], f"{name} {version}")


@situation("Framing", over=("0", "-1", "2147483647", "10 more"))
def sizes_of_frames(talk: Talk, what: str) -> None:
    """Announce sizes of zero, below zero, above the limit, and above the bytes that follow."""
    frame = header(18, 0)
    size = len(frame) + 10 if what == "10 more" else int(what)
    talk.send_bytes(b"" if size <= 0 else frame, what, size=size, seconds=1.0)


@situation("Framing", over=("null", "empty"))
def client_ids(talk: Talk, what: str) -> None:
    """Send a null and an empty client id, which are both allowed."""
    frame = header(METADATA, 1, client_id=None if what == "null" else "") + NO_TOPICS
    talk.send_bytes(frame, what, read_as=("Metadata", 1))


TAGGED = {"unknown": b"\x01\x63\x03abc", "out of order": b"\x02\x64\x01a\x63\x01b", "twice": b"\x02\x63\x01a\x63\x01b"}
UNREAD = ("Groups",)  # groups of other cases


@situation("Framing", over=("Metadata 12", "Fetch 12", "DescribeCluster 0", "ListGroups 3"))
def unknown_tagged_fields(talk: Talk, what: str) -> None:
    """Send unknown tagged fields in header and body, which are skipped."""
    name, version = what.split()[0], int(what.split()[1])
    body = encoded(name, version, {"Topics": []} if name in ("Metadata", "Fetch") else {})
    frame = header(api_by_name(name).key, version) + TAGGED["unknown"] + body[:-1] + TAGGED["unknown"]
    talk.send_bytes(frame, what, read_as=(name, version), without=UNREAD)


@situation("Framing", over=("out of order", "twice"))
def odd_tagged_fields(talk: Talk, what: str) -> None:
    """Send tagged fields out of order and twice, which Kafka accepts."""
    frame = header(60, 0, flexible=True) + encoded("DescribeCluster", 0, {})[:-1] + TAGGED[what]
    talk.send_bytes(frame, what, read_as=("DescribeCluster", 0))


@situation("Framing")
def several_at_once(talk: Talk) -> None:
    """Send several requests at once: a fetch that waits delays the responses after its own."""
    topic = talk.topic()
    slow = talk.begin("Fetch", 12, fetch((topic, 0, 0), MaxWaitMs=400, MinBytes=1))
    rest = [talk.begin("Metadata", 4, {"Topics": []}, str(number)) for number in range(3)]
    last = talk.begin("Produce", 7, produce((topic, 0, batch("a", time_ms=talk.at()))))
    slow.end()
    talk.observe("was held back", slow.waited_s > 0.3)  # words: ok, the name in the recording
    for waiting in (*rest, last):
        waiting.end()


@situation("Framing")
def client_that_writes_no_more(talk: Talk) -> None:
    """Close the client's side for writing, after which the client still receives its response."""
    talk.send_bytes(header(METADATA, 1) + NO_TOPICS, "metadata", read_as=("Metadata", 1), and_shut=True)


@situation("SaslHandshake", "0-1")
def handshake_without_sasl(talk: Talk) -> None:
    """Send SaslHandshake to a plaintext listener."""
    talk.ask({"Mechanism": "PLAIN"})


@situation("SaslAuthenticate", "0-2")
def authentication_without_sasl(talk: Talk) -> None:
    """Send SaslAuthenticate to a plaintext listener."""
    talk.ask({"AuthBytes": b"\0user\0password"})
