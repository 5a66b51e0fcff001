"""sarama's functional tests against five nodes behind toxiproxy, as in its docker-compose.yml.

    python tests/suites/sarama.py FOLDER [--run PATTERN]

The nodes are an EmbeddedCluster in this process, to whose ports toxiproxy forwards the ports of the tests, 29091 to
29095. A program named docker, first in the PATH, stops and starts nodes for tests that use `docker compose stop` and
`start`. FAILS has the tests that may fail, with reasons; the exit status is 1 if another test fails. Tests that run
Java programs in a container skip themselves, as with any cluster that they have not started. The module and toxiproxy
are fetched by `go`, and run in a folder outside the repository.
"""

import argparse
import contextlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kbroker.testing import EmbeddedCluster  # noqa: E402
from tests.suites.go_tests import fetched, judged, run  # noqa: E402
from tests.support.ports import free_run  # noqa: E402

MODULE = "github.com/IBM/sarama@v1.61.1"
TOXIPROXY = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0"
NODES = range(1, 6)
FIRST_PORT = 29091
#: Settings of docker-compose.yml.
SETTINGS = {
    "default.replication.factor": 2,
    "offsets.topic.replication.factor": 2,
    "transaction.state.log.replication.factor": 2,
    "offsets.topic.num.partitions": 50,
    "transaction.state.log.num.partitions": 50,
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "auto.create.topics.enable": False,
}
FAILS: dict[str, str] = {}
DOCKER = """#!{python}
import sys, urllib.request
urllib.request.urlopen("http://127.0.0.1:{port}/" + "/".join(sys.argv[2:]))
"""


def docker(cluster: EmbeddedCluster) -> http.server.ThreadingHTTPServer:
    """Return a server whose paths are the words of `docker compose`: /stop/kafka-3, /start/kafka-3, /logs/...."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = re.fullmatch(r"/(stop|start|logs)/.*kafka-(\d)", self.path)
            if known and known[1] == "stop":
                cluster.stop_node(int(known[2]))
            elif known and known[1] == "start":
                cluster.start_node(int(known[2]))
            self.send_response(200 if known else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Do nothing."""

    return http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@contextlib.contextmanager
def toxiproxy(folder: Path, upstream: int) -> Iterator[str]:
    """Run toxiproxy in front of the ports from UPSTREAM on, and yield the address of its API."""
    program = folder / "bin" / "server"
    if not program.exists():
        where = {**os.environ, "GOBIN": str(program.parent), "GOFLAGS": "-mod=mod"}
        subprocess.run(["go", "install", TOXIPROXY], env=where, check=True)
    port = free_run(1)
    proxies = [
        {
            "name": f"kafka{node}",
            "listen": f"127.0.0.1:{FIRST_PORT - 1 + node}",
            "upstream": f"127.0.0.1:{upstream - 1 + node}",
            "enabled": True,
        }
        for node in NODES
    ]
    config = folder / "toxiproxy.json"
    config.write_text(json.dumps(proxies))
    process = subprocess.Popen(
        [str(program), "-host", "127.0.0.1", "-port", str(port), "-config", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/proxies") as answer:
                assert len(json.load(answer)) == len(NODES)
                break
            time.sleep(0.05)
        else:
            raise AssertionError("toxiproxy does not serve within 10 s")
        yield address
    finally:
        process.terminate()
        process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--run", default=".", help="regular expression of test names")
    chosen = parser.parse_args()
    folder: Path = chosen.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    source = fetched(MODULE, folder / "sarama")
    files = [*source.glob("functional_*_test.go"), source / "functional_test.go"]
    names = [name for file in files for name in re.findall(r"^func (Test\w+)\(t ", file.read_text(), re.MULTILINE)]
    first = free_run(len(NODES))
    settings = {
        **SETTINGS,
        "listeners": f"PLAINTEXT://127.0.0.1:{first}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{FIRST_PORT}",
    }
    racks = list(map(str, NODES))
    with (
        EmbeddedCluster(len(NODES), settings, racks=racks) as cluster,
        docker(cluster) as server,
        toxiproxy(folder, first) as address,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shim = folder / "bin" / "docker"
        shim.write_text(DOCKER.format(python=sys.executable, port=server.server_port))
        shim.chmod(0o755)
        environment = {
            "TOXIPROXY_ADDR": address,
            "KAFKA_VERSION": "4.3.1",
            "PATH": f"{shim.parent}{os.pathsep}{os.environ['PATH']}",
        }
        wanted = [name for name in names if re.search(chosen.run, name)]
        options = ["-tags=functional", f"-run=^({'|'.join(wanted)})$", "."]
        results = run(source, folder / "sarama.log", options, environment)
        server.shutdown()
    return judged(results, FAILS)


if __name__ == "__main__":
    sys.exit(main())
