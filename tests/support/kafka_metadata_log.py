"""Metadata log of Apache Kafka 4.3.1 with its snapshots, and the output of Kafka's own dump of each file.

A combined node, formatted with ``--standalone``, ELR and a SCRAM user, was started; topics, partitions, configs of all
four resource types, quotas, ACLs, SCRAM users, delegation tokens and a feature were created, changed and removed. A
second broker received replicas by creation and reassignment, was stopped and unregistered. Then the first node was
restarted and wrote two snapshots.
"""

import tarfile
from pathlib import Path

LOG = "00000000000000000000.log"
FIRST = "00000000000000000000-0000000000.checkpoint"  # written by the formatter: KRaftVersion and Voters
SNAPSHOTS = ("00000000000000000236-0000000002.checkpoint", "00000000000000000255-0000000002.checkpoint")
BOOTSTRAP = "bootstrap.checkpoint"
FILES = (LOG, FIRST, *SNAPSHOTS, BOOTSTRAP)


def kafka_metadata_log() -> dict[str, bytes]:
    """Return the content of each of ``FILES``, and Kafka's dump of the file under the same name with ``.txt``."""
    found = {}
    with tarfile.open(Path(__file__).with_suffix(".tar.xz")) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            found[member.name] = content.read()
    return found
