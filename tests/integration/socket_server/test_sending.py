"""Responses of a socket server: file regions, slow readers, other framings."""

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.network.options import SocketServerOptions
from kbroker.network.processor._processor import Processor
from kbroker.network.request_channel import RequestChannel
from tests.native.echo import run_files
from tests.support.socket_rig import Rig, assert_closed, frame, read_exactly, response


@contextlib.contextmanager
def sending(path: Path, offset: int, size: int, *, send_files: bool) -> Iterator[socket.socket]:
    """Connect to a processor whose responses have a region of a file between "<>" and "<>"."""
    channel = RequestChannel()
    processor = Processor("P", 0, channel.queue, SocketServerOptions(send_files=send_files))
    loop = threading.Thread(target=processor.run)
    handler = threading.Thread(target=run_files, args=(channel.queue, os.open(path, os.O_RDONLY), offset, size))
    loop.start()
    handler.start()
    ours, theirs = socket.socketpair()
    with ours:
        assert processor.offer(theirs.detach())
        ours.settimeout(10)
        yield ours
    processor.finish_stop()
    channel.close()
    loop.join(10)
    handler.join(10)
    assert not loop.is_alive()


@pytest.mark.parametrize("send_files", [True, False])
@pytest.mark.parametrize("size", [1, 70000, 5_000_000])
def test_file_regions_between_bytes(tmp_path: Path, send_files: bool, size: int) -> None:
    """A response of bytes, a file region and bytes arrives whole, with sendfile and with copying."""
    content = bytes(range(256)) * (size // 256 + 2)
    path = tmp_path / "segment"
    path.write_bytes(content)
    with sending(path, 7, size, send_files=send_files) as ours:
        ours.sendall(frame(b"<>") * 3)
        for _ in range(3):
            assert response(ours) == b"<>" + content[7 : 7 + size] + b"<>"


@pytest.mark.parametrize("send_files", [True, False])
def test_file_shorter_than_promised_closes(tmp_path: Path, send_files: bool) -> None:
    """A file that is shorter than the region closes the connection, as later bytes would be read as file content."""
    path = tmp_path / "segment"
    path.write_bytes(b"short")
    with sending(path, 0, 10, send_files=send_files) as ours:
        ours.sendall(frame(b"<>"))
        assert read_exactly(ours, 11) == struct.pack(">i", 14) + b"<>short"
        assert_closed(ours)


def test_slow_reader_delays_no_other(backend: object) -> None:
    """A client that does not read its responses is no longer read itself, and does not delay other clients."""
    rig = Rig(backend, max_request_bytes=100000)
    rig.serve()
    slow, quick = rig.connect(), rig.connect()
    slow.settimeout(0.3)
    big, sent = frame(b"s" * 90000), 0
    with contextlib.suppress(TimeoutError):
        while sent < 1000:
            slow.sendall(big)
            sent += 1
    assert sent < 1000
    for i in range(100):
        quick.sendall(frame(b"%d" % i))
        assert response(quick) == b"%d" % i
    assert rig.count("requests") < sent + 200
    rig.close()


def test_other_framings(backend: object) -> None:
    """A server with delimiter framing reads lines and writes the bytes of the responses."""
    rig = Rig(backend, framing="delimiter", delimiter=b"\r\n")
    client = rig.connect()
    client.sendall(b"PING\r\nPO")
    request = rig.receive()
    request.respond(b"+" + bytes(request.payload) + b"\r\n")
    client.sendall(b"NG\r\n")
    request = rig.receive()
    request.respond(b"+" + bytes(request.payload) + b"\r\n")
    assert read_exactly(client, 14) == b"+PING\r\n+PONG\r\n"
    rig.close()
