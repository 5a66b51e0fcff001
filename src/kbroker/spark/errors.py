"""Failures of the pipeline that its user can correct."""

import re

_FRAMES = re.compile(r"\n\s+0: ")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ARROW = re.compile(r"\s*\u21b3\s*")  # between an error and its cause


class PipelineError(Exception):
    """A problem and its remedy in one sentence, which the command line prints without a traceback."""


#: Packages of the extra `spark`; pandas: Spark requires it for functions over Arrow batches.
PACKAGES = ("pyspark", "pyarrow", "pandas", "jinja2", "deltalake")
INSTALL = 'pip install "kbroker[spark]"'


def missing_package(name: str) -> PipelineError:
    """Return the error of a package that is not installed."""
    return PipelineError(f"the pipeline needs {name}, which is not installed: {INSTALL}")


#: Spark's message when the Python worker of a stream has not started within ten seconds, which no setting changes.
#: It happens on a busy machine, before anything was read, so the query can be started again.
NO_WORKER = "Python worker failed to connect back"
#: Spark's message when an executor has ended that held a part of a batch of `watch`.
LOST_PART = "Checkpoint block rdd_"


def reason_of_delta(error: Exception | str) -> str:
    """Return the message of an exception of delta-rs in one line, without colours and the frames of a stack."""
    text = _ARROW.sub(": ", _COLOURS.sub("", _FRAMES.split(str(error), maxsplit=1)[0]))
    return " ".join(text.split())[:500]
