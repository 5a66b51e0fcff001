"""Broker in this process, and a Python thread that acquires the GIL and keeps it.

    python -m tests.support.gil_holder DATA_DIR [quotas | acls]

With "quotas" every client id has quotas far above its use, and "slow" a quota of 10,000 bytes a second. The process
prints the addresses of a plaintext listener, of a listener with SASL/PLAIN (alice, secret) and of a listener with TLS.
For each line on standard input, a number of seconds, it spins that long without releasing the GIL and then prints
`done`. It ends when standard input is closed.
"""

import sys
import time
from pathlib import Path

from kbroker.broker import Broker
from kbroker.common.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from kbroker.quota._entities import DEFAULT_ENTITY
from tests.support.certificates import Certificates

USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'


def spin(seconds: float) -> None:
    """Keep the GIL: the switch interval is longer than the loop, which releases nothing."""
    sys.setswitchinterval(1000)
    try:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pass
    finally:
        sys.setswitchinterval(0.005)


def main() -> None:
    settings = {
        "log.dirs": sys.argv[1],
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.location": Certificates(Path(sys.argv[1]).with_name("certificates")).server,
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
    }
    if "acls" in sys.argv[2:]:  # the topic has an ACL for all principals and one for another host
        settings["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        settings["allow.everyone.if.no.acl.found"] = "true"
    with Broker(settings) as broker:
        authorizer = broker.context.auth.authorizer
        if authorizer is not None:
            about = ResourceType.TOPIC, "held", PatternType.LITERAL
            authorizer.create(
                [
                    Acl(*about, "User:*", "*", Operation.ALL, Permission.ALLOW),
                    Acl(*about, "User:*", "10.0.0.1", Operation.ALL, Permission.DENY),
                    Acl(
                        ResourceType.TOPIC, "denied", PatternType.LITERAL, "User:*", "*", Operation.ALL, Permission.DENY
                    ),
                ]
            )
        if sys.argv[2:] == ["quotas"]:
            for key in ("producer_byte_rate", "consumer_byte_rate", "request_percentage"):
                broker.context.quotas.update(None, DEFAULT_ENTITY, key, 1e12)
            broker.context.quotas.update(None, "slow", "producer_byte_rate", 10_000)
        print(*(listener.partition("://")[2] for listener in broker.bound_listeners), flush=True)
        for line in sys.stdin:
            print("spinning", flush=True)
            spin(float(line))
            print("done", flush=True)


if __name__ == "__main__":
    main()
