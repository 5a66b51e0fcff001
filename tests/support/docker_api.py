"""Server of the part of the Docker Engine API that container libraries use, for containers in namespaces.

Libraries find the server by DOCKER_HOST. It has one image and one network; it neither pulls nor builds images.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.container import Container
from tests.support.http_bodies import body_of

API_VERSION = "1.44"
NETWORK = {
    "Name": "bridge",
    "Id": "b" * 64,
    "Driver": "bridge",
    "Scope": "local",
    "IPAM": {"Config": []},
    "Options": {},
}
GZIP = b"\x1f\x8b"
STREAM = "application/vnd.docker.raw-stream"


class Made:
    """Created container: its settings and, after its start, the running container."""

    def __init__(self, body: dict[str, Any], name: str) -> None:
        self.id = uuid.uuid4().hex * 2
        self.body = body
        self.name = name
        self.running: Container | None = None
        self.execs: dict[str, dict[str, Any]] = {}

    def command(self) -> list[str]:
        """Return the entry point, which may be a string, and the command."""
        entry = self.body.get("Entrypoint") or []
        command = self.body.get("Cmd") or []
        return [*([entry] if isinstance(entry, str) else entry), *command]


class DockerApi:
    """HTTP server of the API. Args: ``image``: folder of the only image; ``folder``: for the containers."""

    def __init__(self, image: Path, folder: Path) -> None:
        self.image = image
        self.folder = folder
        self.made: dict[str, Made] = {}
        self.requests: list[str] = []
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"tcp://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="docker-api", daemon=True).start()

    def __enter__(self) -> DockerApi:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        for made in self.made.values():
            if made.running is not None:
                made.running.close()

    def find(self, name: str) -> Made | None:
        """Return the container with this name, id or prefix of an id."""
        return next((m for m in self.made.values() if m.id.startswith(name) or m.name == name), None)

    def start(self, made: Made) -> None:
        """Start a created container."""
        env = dict(word.partition("=")[::2] for word in made.body.get("Env") or [])
        ports = sorted({int(port.partition("/")[0]) for port in made.body.get("ExposedPorts") or {}})
        made.running = Container(
            self.image, self.folder / made.id[:12], made.command(), env=env, ports=ports, hostname=made.id[:12]
        )

    def inspect(self, made: Made) -> dict[str, Any]:
        """Return the document that `docker inspect` shows."""
        running = made.running
        status = running.exit_status() if running is not None else None
        is_running = running is not None and status is None
        ports = {
            port: [{"HostIp": "0.0.0.0", "HostPort": str(running.mapped(int(port.partition("/")[0])))}]
            for port in made.body.get("ExposedPorts") or {}
            if running is not None and is_running
        }
        state = {
            "Status": "running" if is_running else "exited" if running is not None else "created",
            "Running": is_running, "Paused": False, "Restarting": False, "OOMKilled": False, "Dead": False,
            "Pid": 1 if is_running else 0, "ExitCode": status or 0, "Error": "", "StartedAt": "2026-01-01T00:00:00Z",
            "FinishedAt": "0001-01-01T00:00:00Z",
        }  # fmt: skip
        address = {"IPAddress": "172.17.0.2", "Gateway": "127.0.0.1"}
        networks = {"bridge": {"NetworkID": NETWORK["Id"], **address}}
        return {
            "Id": made.id, "Name": f"/{made.name}", "Created": "2026-01-01T00:00:00Z", "Image": "sha256:" + "1" * 64,
            "State": state, "Config": {**made.body, "Hostname": made.id[:12], "Labels": made.body.get("Labels") or {}},
            "HostConfig": made.body.get("HostConfig") or {}, "Mounts": [],
            "NetworkSettings": {"Ports": ports, "Networks": networks, **address},
        }  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    api: DockerApi
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        path = re.sub(r"^/v[\d.]+", "", parts.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        body = body_of(self)
        self.api.requests.append(f"{self.command} {path}")
        for method, pattern, call in ROUTES:
            match = re.fullmatch(pattern, path)
            if match is not None and self.command in method:
                with contextlib.suppress(ConnectionError):  # the client has closed the connection
                    call(self, query, body, *match.groups())
                return
        self.send(404, {"message": f"{self.command} {path} is not served"})

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _serve

    def send(self, status: int, document: Any = None, text: bytes | None = None) -> None:
        """Send a response."""
        data = text if text is not None else b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Api-Version", API_VERSION)
        self.send_header("OSType", "linux")
        if status not in (204, 304):
            self.send_header("Content-Type", "application/json" if text is None else "text/plain")
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def ping(self, query: dict[str, str], body: bytes) -> None:
        self.send(200, text=b"OK")

    def version(self, query: dict[str, str], body: bytes) -> None:
        self.send(200, {"Version": "28.0.0", "ApiVersion": API_VERSION, "MinAPIVersion": "1.24", "Os": "linux",
                        "Arch": "amd64", "KernelVersion": "6", "Components": []})  # fmt: skip

    def info(self, query: dict[str, str], body: bytes) -> None:
        self.send(200, {"ID": "kbroker", "ServerVersion": "28.0.0", "OperatingSystem": "Linux", "OSType": "linux",
                        "Architecture": "x86_64", "NCPU": 2, "MemTotal": 8 << 30, "Labels": [], "Name": "tests",
                        "IndexServerAddress": "https://index.docker.io/v1/", "SecurityOptions": []})  # fmt: skip

    def image(self, query: dict[str, str], body: bytes, name: str) -> None:
        self.send(200, {"Id": "sha256:" + "1" * 64, "RepoTags": [name], "RepoDigests": [], "Os": "linux",
                        "Architecture": "amd64", "Created": "2026-01-01T00:00:00Z", "Size": 1,
                        "Config": {"Env": [], "Cmd": ["/etc/kafka/docker/run"], "Labels": {}},
                        "RootFS": {"Type": "layers", "Layers": []}})  # fmt: skip

    def images(self, query: dict[str, str], body: bytes) -> None:
        self.send(200, [])

    def networks(self, query: dict[str, str], body: bytes) -> None:
        self.send(200, [NETWORK])

    def network(self, query: dict[str, str], body: bytes, name: str) -> None:
        self.send(200, NETWORK)

    def create(self, query: dict[str, str], body: bytes) -> None:
        made = Made(json.loads(body), query.get("name") or f"c{len(self.api.made)}")
        self.api.made[made.id] = made
        self.send(201, {"Id": made.id, "Warnings": []})

    def containers(self, query: dict[str, str], body: bytes) -> None:
        ids = json.loads(query.get("filters") or "{}").get("id", [])
        wanted = [made for made in self.api.made.values() if not ids or made.id in ids]
        inspected = [(made, self.api.inspect(made)) for made in wanted]
        self.send(200, [{"Id": made.id, "Names": [one["Name"]], "Image": "kbroker", "Labels": one["Config"]["Labels"],
                         "State": one["State"]["Status"], "Ports": [], "HostConfig": {"NetworkMode": "bridge"},
                         "NetworkSettings": {"Networks": one["NetworkSettings"]["Networks"]}}
                        for made, one in inspected])  # fmt: skip

    def _found(self, name: str) -> Made | None:
        made = self.api.find(name)
        if made is None:
            self.send(404, {"message": f"No such container: {name}"})
        return made

    def start(self, query: dict[str, str], body: bytes, name: str) -> None:
        if (made := self._found(name)) is not None:
            self.api.start(made)
            self.send(204)

    def inspect(self, query: dict[str, str], body: bytes, name: str) -> None:
        if (made := self._found(name)) is not None:
            self.send(200, self.api.inspect(made))

    def end(self, query: dict[str, str], body: bytes, name: str) -> None:
        if (made := self._found(name)) is not None:
            if made.running is not None:
                made.running.close()
            if self.command == "DELETE":
                del self.api.made[made.id]
            self.send(204)

    def wait(self, query: dict[str, str], body: bytes, name: str) -> None:
        if (made := self._found(name)) is not None and made.running is not None:
            self.send(200, {"StatusCode": made.running.wait()})

    def put(self, query: dict[str, str], body: bytes, name: str) -> None:
        if (made := self._found(name)) is not None and made.running is not None:
            if body.startswith(GZIP):
                body = gzip.decompress(body)
            command = made.running.command_inside("tar", "-x", "-f", "-", "-C", query["path"], user="0:0")
            done = subprocess.run(command, input=body, capture_output=True, check=False)
            if done.returncode == 0:
                self.send(200, text=b"")
            else:
                self.send(500, {"message": done.stderr.decode()})

    def make_exec(self, query: dict[str, str], body: bytes, name: str) -> None:
        if (made := self._found(name)) is not None:
            exec_id = uuid.uuid4().hex * 2
            made.execs[exec_id] = {"body": json.loads(body), "status": None}
            self.send(201, {"Id": exec_id})

    def _exec(self, exec_id: str) -> tuple[Made, dict[str, Any]]:
        return next((m, m.execs[exec_id]) for m in self.api.made.values() if exec_id in m.execs)

    def start_exec(self, query: dict[str, str], body: bytes, exec_id: str) -> None:
        made, one = self._exec(exec_id)
        assert made.running is not None
        env = dict(word.partition("=")[::2] for word in one["body"].get("Env") or [])
        done = made.running.exec(*one["body"]["Cmd"], env=env)
        one["status"] = done.returncode
        is_upgrade = self.headers.get("Upgrade", "").lower() == "tcp"
        if is_upgrade:
            self.send_response(101, "UPGRADED")
            self.send_header("Connection", "Upgrade")
            self.send_header("Upgrade", "tcp")
        else:
            self.send_response(200)
            self.send_header("Connection", "close")
        self.send_header("Content-Type", STREAM)
        self.end_headers()
        for kind, text in ((1, done.stdout), (2, done.stderr)):
            if text:
                self.wfile.write(_frame(kind, text.encode()))
        self.close_connection = True

    def inspect_exec(self, query: dict[str, str], body: bytes, exec_id: str) -> None:
        _, one = self._exec(exec_id)
        self.send(200, {"ID": exec_id, "Running": one["status"] is None, "ExitCode": one["status"], "Pid": 1})

    def logs(self, query: dict[str, str], body: bytes, name: str) -> None:
        """Send the output so far and, with ``follow``, all further output. All output is on stdout."""
        if (made := self._found(name)) is None:
            return
        follows = query.get("follow") in ("1", "true", "True")
        if query.get("stdout") in ("0", "false", "False"):
            self.send(200, text=b"")
            return
        self.send_response(200)
        self.send_header("Content-Type", STREAM)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent = 0
        while True:
            running = made.running
            has_ended = running is None or running.exit_status() is not None or made.id not in self.api.made
            data = b"" if running is None else running.log().encode()
            if len(data) > sent:
                self._chunk(_frame(1, data[sent:]))
                sent = len(data)
            if has_ended or not follows:
                break
            time.sleep(0.02)
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


def _frame(kind: int, data: bytes) -> bytes:
    return bytes([kind, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("GET HEAD", "/_ping", _Handler.ping),
    ("GET", "/version", _Handler.version),
    ("GET", "/info", _Handler.info),
    ("GET", "/images/json", _Handler.images),
    ("GET", "/images/(.+)/json", _Handler.image),
    ("GET", "/networks", _Handler.networks),
    ("GET", "/networks/(.+)", _Handler.network),
    ("POST", "/containers/create", _Handler.create),
    ("GET", "/containers/json", _Handler.containers),
    ("POST", "/containers/([^/]+)/start", _Handler.start),
    ("GET", "/containers/([^/]+)/json", _Handler.inspect),
    ("GET", "/containers/([^/]+)/logs", _Handler.logs),
    ("PUT", "/containers/([^/]+)/archive", _Handler.put),
    ("POST", "/containers/([^/]+)/(?:stop|kill)", _Handler.end),
    ("POST", "/containers/([^/]+)/wait", _Handler.wait),
    ("DELETE", "/containers/([^/]+)", _Handler.end),
    ("POST", "/containers/([^/]+)/exec", _Handler.make_exec),
    ("POST", "/exec/([^/]+)/start", _Handler.start_exec),
    ("GET", "/exec/([^/]+)/json", _Handler.inspect_exec),
]
