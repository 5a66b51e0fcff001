"""Start sequences of libraries that start Kafka containers for tests.

From the sources of testcontainers-java 2.0.2, testcontainers-python 4.15.0, testcontainers-go 0.40.0,
testcontainers-node 12.2.0, testcontainers-rs-modules 0.13.0, Quarkus 3.30.1, strimzi-test-container 0.110.0.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

RUNNING = r".*Transitioning from RECOVERY to RUNNING.*"
SERVER_STARTED = r".*Kafka Server started.*"
SERVER_ID_STARTED = r".*\[KafkaServer id=\d+\] started.*"
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
LONG_MAX = str(2**63 - 1)


class StartSequence(NamedTuple):
    """Start sequence of a library.

    Attributes:
        name: name of the library and its class.
        env: environment of the container.
        command: entry point and command.
        script: path of the start script.
        text: function that returns the script for the mapped port and the container's host name.
        mode: mode of the script's file.
        ready: regular expression of the line for which the library waits.
        port: the exposed port.
        is_executed: a program in the container writes the script, instead of a copy.
        files: further files, copied before the script.
    """

    name: str
    env: Mapping[str, str]
    command: Sequence[str]
    script: str
    text: Callable[[int, str], str]
    mode: int
    ready: str
    port: int
    is_executed: bool = False
    files: Callable[[int, str], Mapping[str, str]] = lambda port, host: {}


def _waiting(script: str) -> str:
    return f"while [ ! -f {script} ]; do sleep 0.1; done; {script}"


JAVA_ENV = {
    "CLUSTER_ID": CLUSTER_ID,
    "KAFKA_LISTENERS": "PLAINTEXT://0.0.0.0:9092,BROKER://0.0.0.0:9093,CONTROLLER://0.0.0.0:9094",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_NODE_ID": "1",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": LONG_MAX,
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
}
# the former class, for Confluent's image
LEGACY_ENV = {
    "KAFKA_LISTENERS": "PLAINTEXT://0.0.0.0:9093,BROKER://0.0.0.0:9092",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
    "KAFKA_BROKER_ID": "1",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": LONG_MAX,
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
}
KRAFT = {
    "CLUSTER_ID": CLUSTER_ID,
    "KAFKA_NODE_ID": "1",
    "KAFKA_LISTENERS": "PLAINTEXT://0.0.0.0:9093,BROKER://0.0.0.0:9092,CONTROLLER://0.0.0.0:9094",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
}
ZOOKEEPER = {"KAFKA_ZOOKEEPER_CONNECT": "localhost:2181"}
TMP_SCRIPT = "/tmp/testcontainers_start.sh"


def _java(run: str) -> Callable[[int, str], str]:
    return lambda port, host: (
        f"#!/bin/bash\nexport KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:{port},BROKER://{host}:9093\n{run} \n"
    )


def _legacy(lines: str) -> Callable[[int, str], str]:
    return lambda port, host: (
        f"#!/bin/bash\nexport KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:{port},BROKER://{host}:9092\n"
        f"{lines}/etc/confluent/docker/run \n"
    )


FORMAT = (
    "sed -i '/KAFKA_ZOOKEEPER_CONNECT/d' /etc/confluent/docker/configure\n"
    f"echo 'kafka-storage format --ignore-formatted -t \"{CLUSTER_ID}\" -c /etc/kafka/kafka.properties' "
    ">> /etc/confluent/docker/configure\n"
)
SKIP_ENSURE = "echo '' > /etc/confluent/docker/ensure \n"
START_ZOOKEEPER = (
    "echo 'clientPort=2181' > /tmp/zookeeper.properties\n"
    "echo 'dataDir=/var/lib/zookeeper/data' >> /tmp/zookeeper.properties\n"
    "echo 'dataLogDir=/var/lib/zookeeper/log' >> /tmp/zookeeper.properties\n"
    "zookeeper-server-start /tmp/zookeeper.properties &\n"
)


def _python(boot: str) -> Callable[[int, str], str]:
    return lambda port, host: (
        f"#!/bin/bash\n{boot}\n"
        f"export KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:{port},BROKER://$(hostname -i):9092\n"
        ". /etc/confluent/docker/bash-config\n/etc/confluent/docker/configure\n/etc/confluent/docker/launch"
    )


PYTHON_ENV = {name: value for name, value in LEGACY_ENV.items() if not name.startswith("KAFKA_TRANSACTION")} | {
    "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": "10000000"
}
PYTHON_ID = "MkU3OEVBNTcwNTJENDM2Qk"
PYTHON_SCRIPT = "/tc-start.sh"
PYTHON_COMMAND = ["sh", "-c", f"while [ ! -f {PYTHON_SCRIPT} ]; do sleep 0.1; done; sh {PYTHON_SCRIPT}"]

GO_SCRIPT = "/usr/sbin/testcontainers_start.sh"


def _go(port: int, host: str) -> str:
    return f"""#!/bin/bash
source /etc/confluent/docker/bash-config
export KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:{port},BROKER://{host}:9092
echo Starting Kafka KRaft mode
sed -i '/KAFKA_ZOOKEEPER_CONNECT/d' /etc/confluent/docker/configure
echo 'kafka-storage format --ignore-formatted -t "$(kafka-storage random-uuid)" -c /etc/kafka/kafka.properties' >> /etc/confluent/docker/configure
echo '' > /etc/confluent/docker/ensure
/etc/confluent/docker/configure
/etc/confluent/docker/launch"""  # noqa: E501


RUST_SCRIPT = "/opt/kafka/testcontainers_start.sh"
QUARKUS_SCRIPT = "/work/run.sh"
STRIMZI_SCRIPT = "/testcontainers_start.sh"


def _strimzi_files(port: int, host: str) -> Mapping[str, str]:
    text = f"""listeners=PLAINTEXT://0.0.0.0:9092,BROKER1://0.0.0.0:9091,CONTROLLER://0.0.0.0:9094
inter.broker.listener.name=BROKER1
broker.id=0
advertised.listeners=PLAINTEXT://localhost:{port},BROKER1://127.0.0.1:9091,CONTROLLER://broker-0:9094
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,BROKER1:PLAINTEXT,CONTROLLER:PLAINTEXT
num.network.threads=3
num.io.threads=8
log.dirs=/tmp/default-log-dir
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
process.roles=broker,controller
node.id=0
controller.quorum.voters=0@broker-0:9094
controller.listener.names=CONTROLLER
"""
    return {"/opt/kafka/config/kraft/server.properties": text}


START_SEQUENCES = (
    *(
        StartSequence(name, JAVA_ENV, ["sh", "-c", _waiting(TMP_SCRIPT)], TMP_SCRIPT, _java(run), 0o777, RUNNING, 9092)
        for name, run in (
            ("java KafkaContainer", "/etc/kafka/docker/run"),
            ("java ConfluentKafkaContainer", "/etc/confluent/docker/run"),
        )
    ),
    *(
        StartSequence(
            name,
            {**LEGACY_ENV, **env},
            ["sh", "-c", _waiting(TMP_SCRIPT)],
            TMP_SCRIPT,
            _legacy(script),
            0o777,
            line,
            9093,
        )
        for name, env, script, line in (
            ("java containers.KafkaContainer with KRaft", KRAFT, SKIP_ENSURE + FORMAT, RUNNING),
            ("java containers.KafkaContainer", ZOOKEEPER, SKIP_ENSURE + START_ZOOKEEPER, SERVER_ID_STARTED),
        )
    ),
    StartSequence(
        "python with_kraft",
        {**PYTHON_ENV, **KRAFT, "CLUSTER_ID": PYTHON_ID},
        PYTHON_COMMAND,
        PYTHON_SCRIPT,
        _python(FORMAT.replace(CLUSTER_ID, PYTHON_ID)),
        0o644,
        SERVER_STARTED,
        9093,
    ),
    StartSequence(
        "python",
        PYTHON_ENV,
        PYTHON_COMMAND,
        PYTHON_SCRIPT,
        _python(START_ZOOKEEPER.replace("/tmp/", "") + "export KAFKA_ZOOKEEPER_CONNECT='localhost:2181'"),
        0o644,
        SERVER_ID_STARTED,
        9093,
    ),
    StartSequence(
        "go",
        {**LEGACY_ENV, **KRAFT, "KAFKA_REST_BOOTSTRAP_SERVERS": KRAFT["KAFKA_LISTENERS"], "CLUSTER_ID": ""},
        ["sh", "-c", f"while [ ! -f {GO_SCRIPT} ]; do sleep 0.1; done; bash {GO_SCRIPT}"],
        GO_SCRIPT,
        _go,
        0o755,
        RUNNING,
        9093,
    ),
    StartSequence(
        "node withKraft",
        {
            **LEGACY_ENV,
            **KRAFT,
            "KAFKA_CONFLUENT_SUPPORT_METRICS_ENABLE": "false",
            "KAFKA_ADVERTISED_LISTENERS": "BROKER://localhost:9092",
        },
        ["sh", "-c", f"echo 'Waiting for script...'; {_waiting(TMP_SCRIPT)}"],
        TMP_SCRIPT,
        lambda port, host: (
            "#!/bin/bash\nexport KAFKA_ADVERTISED_LISTENERS="
            f"BROKER://{host}:9092,PLAINTEXT://localhost:{port}\n/etc/confluent/docker/run \n"
        ),
        0o777,
        SERVER_STARTED,
        9093,
    ),
    StartSequence(
        "rust apache",
        {
            "KAFKA_LISTENERS": JAVA_ENV["KAFKA_LISTENERS"],
            "CLUSTER_ID": "5L6g3nShT-eMCtK--X86sw",
            "KAFKA_PROCESS_ROLES": "broker,controller",
            "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": JAVA_ENV["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"],
            "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
            "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://localhost:9092,BROKER://localhost:9092",
            "KAFKA_BROKER_ID": "1",
            "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
            "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094",
        },
        ["bash", "-c", f"while [ ! -f {RUST_SCRIPT}  ]; do sleep 0.1; done; chmod 755 {RUST_SCRIPT} && {RUST_SCRIPT}"],
        RUST_SCRIPT,
        lambda port, host: (
            f"echo '#!/usr/bin/env bash\nexport KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://127.0.0.1:{port},"
            f"BROKER://localhost:9093\n/etc/kafka/docker/run \n' > {RUST_SCRIPT}"
        ),
        0,
        "Kafka Server started",
        9092,
        is_executed=True,
    ),
    StartSequence(
        "quarkus kafka-native",
        {},
        ["sh", "-c", f"while [ ! -f {QUARKUS_SCRIPT} ]; do sleep 0.1; done; sleep 0.1; {QUARKUS_SCRIPT}"],
        QUARKUS_SCRIPT,
        lambda port, host: (
            f'echo -e "#!/bin/bash\n/work/kafka -Dkafka.advertised.listeners=PLAINTEXT://localhost:{port}"'
            f" >> {QUARKUS_SCRIPT} && chmod 777 {QUARKUS_SCRIPT}"
        ),
        0,
        r".*Kafka broker started.*",
        9092,
        is_executed=True,
    ),
    StartSequence(
        "quarkus kafka-native in a shared network",
        {},
        ["sh", "-c", f"while [ ! -f {QUARKUS_SCRIPT} ]; do sleep 0.1; done; sleep 0.1; {QUARKUS_SCRIPT}"],
        QUARKUS_SCRIPT,
        lambda port, host: (
            'echo -e "#!/bin/bash\n/work/kafka'
            f" -Dkafka.advertised.listeners=BROKER://{host}:9093,PLAINTEXT://localhost:{port}"
            " -Dkafka.listeners=BROKER://:9093,PLAINTEXT://:9092,CONTROLLER://:9094"
            " -Dkafka.interbroker.listener.name=BROKER -Dkafka.controller.listener.names=CONTROLLER"
            " -Dkafka.listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
            ' -Dkafka.early.start.listeners=BROKER,CONTROLLER,PLAINTEXT"'
            f" >> {QUARKUS_SCRIPT} && chmod 777 {QUARKUS_SCRIPT}"
        ),
        0,
        r".*Kafka broker started.*",
        9092,
        is_executed=True,
    ),
    StartSequence(
        "strimzi (quarkus)",
        {"LOG_DIR": "/tmp"},
        ["sh", "-c", f"while [ ! -x {STRIMZI_SCRIPT} ]; do sleep 0.1; done; {STRIMZI_SCRIPT}"],
        STRIMZI_SCRIPT,
        lambda port, host: (
            '#!/bin/bash \nbin/kafka-storage.sh format -t="5L6g3nShT-eMCtK--X86sw" '
            "-c /opt/kafka/config/kraft/server.properties \n"
            "bin/kafka-server-start.sh /opt/kafka/config/kraft/server.properties \n"
        ),
        700,
        RUNNING,
        9092,
        files=_strimzi_files,
    ),
)
