"""Voters in the options of the storage tool; errors have the messages of Kafka's ``DynamicVoter``."""

from uuid import UUID

import pytest

from kbroker.log.checkpoints import uuid_to_text
from kbroker.metadata.log.format_options import parse_voters
from kbroker.metadata.log.formatter import FormatError

ID = uuid_to_text(UUID(int=5))


def test_voters_are_sorted_by_id() -> None:
    found = parse_voters(f"2@[::1]:65535:{ID}, 1@h:0:{ID},", "c")
    assert [(one.id, one.directory_id, one.endpoints[0][1:]) for one in found] == [
        (1, UUID(int=5), ("h", 0)),
        (2, UUID(int=5), ("0:0:0:0:0:0:0:1", 65535)),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "No voters given."),
        (f"1@h:1:{ID},1@h:1:{ID}", "Node id 1 was specified more than once."),
        ("1", "No @ found in dynamic voter string."),
        ("@h", "Invalid @ at beginning of dynamic voter string."),
        ("x@h", "Failed to parse node id in dynamic voter string."),
        (f"{1 << 31}@h", "Failed to parse node id in dynamic voter string."),
        ("-1@h", "Invalid negative node id -1 in dynamic voter string."),
        ("1@", "No hostname found after node id."),
        ("1@[::1:1", "Hostname began with left bracket, but no right bracket was found."),
        ("1@h", "No colon following hostname could be found."),
        ("1@[::1]1", "Port section must start with a colon."),
        ("1@h:1", "No colon following port could be found."),
        (f"1@h:x:{ID}", "Failed to parse port in dynamic voter string."),
        (f"1@h:-1:{ID}", "Invalid port -1 in dynamic voter string."),
        (f"1@h:65536:{ID}", "Invalid port 65536 in dynamic voter string."),
        ("1@h:1:x", "Failed to parse directory ID in dynamic voter string."),
    ],
)
def test_words_that_are_no_voters(text: str, sentence: str) -> None:
    with pytest.raises(FormatError) as failure:
        parse_voters(text, "c")
    assert str(failure.value) == sentence
