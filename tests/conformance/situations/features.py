"""Levels of features, and requests about other brokers and voters to a single node."""

import uuid

from tests.conformance.codec import ZERO_ID, Body
from tests.conformance.run import situation
from tests.conformance.talk import Talk


@situation("UpdateFeatures", "0-2", alone=True)
def levels_of_features(talk: Talk) -> None:
    """Lower and raise a level, keep it, validate only, and change several features, one of them wrongly."""

    def ask(note: str, *rows: tuple[str, int, int], validate_only: bool = False) -> None:
        updates = [
            {"Feature": name, "MaxVersionLevel": level, "UpgradeType": kind, "AllowDowngrade": kind > 1}
            for name, level, kind in rows
        ]
        talk.ask({"FeatureUpdates": updates, "ValidateOnly": validate_only}, note)

    name = "transaction.version"
    ask("none")
    ask("the same", (name, 2, 1))
    ask("the same, down", (name, 2, 2))
    if talk.version:
        ask("only looked at", (name, 1, 2), validate_only=True)
    ask("down by an upgrade", (name, 1, 1))
    ask("down", (name, 1, 2))
    ask("up by a downgrade", (name, 2, 2))
    ask("further down, not safely", (name, 0, 3))
    ask("one of two is wrong", (name, 1, 1), ("no.such", 1, 1))
    ask("up", (name, 2, 1))


@situation("UpdateFeatures", "0-2", over=("-1", "0", "1", "3", "6", "29", "30", "32"))
def impossible_levels(talk: Talk, level: str) -> None:
    """Set impossible levels of metadata.version and of unknown features by every type of change."""
    ways = (0, 1, 2, 3, 9) if talk.version else (1,)
    for kind in ways:
        for name in ("metadata.version", "no.such", ""):
            row = {"Feature": name, "MaxVersionLevel": int(level), "UpgradeType": kind}
            talk.ask({"FeatureUpdates": [row]}, f"{name or 'without a name'} by {kind}")


@situation("UnregisterBroker", "0")
def brokers_that_are_not_there(talk: Talk) -> None:
    """Unregister unknown brokers."""
    for broker in (77, -1):
        talk.ask({"BrokerId": broker}, str(broker))


def voter(**changes: object) -> Body:
    """Return the fields of another controller."""
    directory = uuid.UUID(int=7)
    return {"ClusterId": None, "VoterId": 2, "VoterDirectoryId": directory, **changes}


@situation("AddRaftVoter", "0-1")
def added_voters(talk: Talk) -> None:
    """Add voters to a static quorum, which does not change, with valid and invalid fields."""
    listener = {"Name": "CONTROLLER", "Host": "127.0.0.1", "Port": 1}
    body = {"TimeoutMs": 1000, "Listeners": [listener]}
    talk.ask({**voter(), **body}, "another")
    talk.ask({**voter(VoterId=-1), **body}, "no id")
    talk.ask({**voter(VoterDirectoryId=ZERO_ID), **body}, "no directory")
    talk.ask({**voter(ClusterId="elsewhere"), **body}, "another cluster")
    talk.ask({**voter(ClusterId="elsewhere", VoterId=-1), **body}, "another cluster, no id")
    talk.ask({**voter(), **body, "Listeners": []}, "no listeners")
    talk.ask({**voter(VoterId=-1), **body, "Listeners": []}, "neither id nor listeners")
    talk.ask({**voter(), **body, "Listeners": [{**listener, "Name": "OTHER"}]}, "another listener")


@situation("RemoveRaftVoter", "0")
def removed_voters(talk: Talk) -> None:
    """Remove voters from a static quorum, which does not change, with valid and invalid fields."""
    talk.ask(voter(), "another")
    talk.ask(voter(VoterId=-1), "no id")
    talk.ask(voter(VoterDirectoryId=ZERO_ID), "no directory")
    talk.ask(voter(ClusterId="elsewhere"), "another cluster")
