"""Error 89 in `kbroker topics`, against a scripted broker."""

import pytest

from kbroker.client.admin import Admin, MutationThrottledError
from kbroker.client.cluster import Cluster
from tests.support.cli import run
from tests.support.quota_broker import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS, QuotaBroker


@pytest.mark.parametrize(
    ("args", "key", "done"),
    [
        (["topics", "create", "x"], CREATE_TOPICS, "created x with 1 partition\n"),
        (["topics", "delete", "x"], DELETE_TOPICS, "deleted x\n"),
        (["topics", "alter", "x", "--partitions", "3"], CREATE_PARTITIONS, "altered x\n"),
    ],
)
def test_topics_never_retries_on_89_unless_asked_to(
    broker: QuotaBroker, monkeypatch: pytest.MonkeyPatch, args: list[str], key: int, done: str
) -> None:
    """The delay is printed and the command ends with 75 at once; with --wait it sleeps that long and retries."""
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    defaults = Cluster.__init__.__kwdefaults__ or {}
    monkeypatch.setattr(Cluster.__init__, "__kwdefaults__", {**defaults, "sleep": slept.append})
    broker.refusals = 2
    refused = run(broker, *args)
    assert (refused.exit_code, refused.stdout) == (75, "")
    assert refused.stderr == (
        "kbroker: THROTTLING_QUOTA_EXCEEDED: topic 'x': the controller mutation quota is used up, try again in 2.3 s\n"
    )
    assert (len(broker.asked(key)), slept) == (1, [])
    assert run(broker, *args, "--wait").output == done
    assert len(broker.asked(key)) == 3
    assert slept[0] == 2.345


def test_the_refusal_carries_its_delay(broker: QuotaBroker) -> None:
    """The exception has the throttle time of the response in milliseconds."""
    broker.refusals = 1
    with Cluster(broker.bootstrap) as cluster, pytest.raises(MutationThrottledError) as caught:
        Admin(cluster).create_partitions("x", 2)
    assert caught.value.throttle_time_ms == 2345
