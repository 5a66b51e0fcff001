"""Scripted broker for tests of clients: real sockets, the broker's codec, and responses that the test defines."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kbroker.client.connection import format_address
from kbroker.protocol import codec

if TYPE_CHECKING:
    from typing_extensions import Self

Body = dict[str, Any]
Handler = Callable[[int, Body], "Body | bytes | None"]
METADATA, API_VERSIONS = 3, 18


class FakeBroker:
    """Broker whose handlers, functions of version and body, return a response body, bytes, or None to close."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.bootstrap = format_address(self.address)
        self.ranges = {key: api.request_versions for key, api in codec.apis().items()}
        self.seen: list[tuple[int, int, Body]] = []
        self.sockets: list[socket.socket] = []
        self.handlers: dict[int, Handler] = {API_VERSIONS: self.api_versions, METADATA: self.metadata}
        self.partitions = {"t": 2}
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def api_versions(self, version: int, body: Body) -> Body:
        keys = [{"ApiKey": k, "MinVersion": low, "MaxVersion": high} for k, (low, high) in self.ranges.items()]
        return {"ErrorCode": 0, "ApiKeys": keys}

    def metadata(self, version: int, body: Body) -> Body:
        wanted = body["Topics"]
        names = list(self.partitions) if wanted is None else [t["Name"] for t in wanted]
        topics = [
            {
                "Name": name,
                "ErrorCode": 0 if name in self.partitions else 3,
                "Partitions": [
                    {"PartitionIndex": i, "LeaderId": 7, "LeaderEpoch": 1, "ReplicaNodes": [7], "IsrNodes": [7]}
                    for i in range(self.partitions.get(name, 0))
                ],
            }
            for name in names
        ]
        host, port = self.address
        return {
            "Brokers": [{"NodeId": 7, "Host": host, "Port": port}],
            "ControllerId": 7,
            "ClusterId": "c",
            "Topics": topics,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def asked(self, key: int) -> list[tuple[int, Body]]:
        return [(version, body) for k, version, body in self.seen if k == key]

    def close(self) -> None:
        # close() alone would not wake a thread that waits in accept
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for sock in self.sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self.thread.join(5)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                self.sockets.append(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, struct.error), sock.makefile("rb") as stream:
            while True:
                (size,) = struct.unpack(">i", stream.read(4))
                frame = stream.read(size)
                header, at = codec.decode_request_header(frame)
                key, version = header.api_key, header.api_version
                low, high = self.ranges.get(key, (0, -1))
                if key == API_VERSIONS and not low <= version <= high:
                    refused = {"ErrorCode": 35, "ApiKeys": [{"ApiKey": 18, "MinVersion": low, "MaxVersion": high}]}
                    sock.sendall(codec.encode_response_frame(key, 0, header.correlation_id, refused))
                    self.seen.append((key, version, {}))
                    continue
                body = codec.decode_request(key, version, frame, at)
                self.seen.append((key, version, body))
                response = self.handlers[key](version, body)
                if response is None:
                    sock.shutdown(socket.SHUT_RDWR)
                    return
                if isinstance(response, bytes):
                    sock.sendall(response)
                else:
                    sock.sendall(codec.encode_response_frame(key, version, header.correlation_id, response))
