"""Failures of the pipeline that its user can mend."""

import re

_FRAMES = re.compile(r"\n\s+0: ")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ARROW = re.compile(r"\s*\u21b3\s*")  # between an error and its cause


class PipelineError(Exception):
    """What is missing or wrong and what to do, in one sentence; the command line prints it without a traceback."""


#: What Spark says when a stream has waited ten seconds and its Python worker has not started; nothing sets that time.
#: On a busy machine it happens, before anything was read: the query can be started again.
NO_WORKER = "Python worker failed to connect back"
#: What Spark says when an executor has ended and had a part of what a batch of `watch` has added up.
LOST_PART = "Checkpoint block rdd_"


def reason_of_delta(error: Exception) -> str:
    """What an exception of delta-rs says, without the frames of its stack that some have below, and its colours."""
    text = _ARROW.sub(": ", _COLOURS.sub("", _FRAMES.split(str(error), maxsplit=1)[0]))
    return " ".join(text.split())[:500]
