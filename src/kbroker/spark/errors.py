"""Failures of the pipeline that its user can correct."""

import re

from kbroker.common.errors import UserError

_FRAMES = re.compile(r"\n\s+0: ")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ARROW = re.compile(r"\s*\u21b3\s*")  # arrow between an error and its cause


class PipelineError(UserError):
    """A problem and its remedy in one sentence, which the command line prints without a traceback."""


#: Packages of the extra `spark`; Spark requires pandas for functions over Arrow batches.
PACKAGES = ("pyspark", "pyarrow", "pandas", "jinja2", "deltalake")
INSTALL = 'pip install "kbroker[spark]"'


def missing_package(name: str) -> PipelineError:
    """Return the error for a package that is not installed."""
    return PipelineError(f"the pipeline needs {name}, which is not installed: {INSTALL}")


#: Spark's message when the Python worker of a stream has not started within ten seconds, which no setting changes.
#: It happens on a busy machine, before anything was read, so the query can be started again.
NO_WORKER = "Python worker failed to connect back"
#: Spark's message when an executor that had a part of a batch of `watch` has ended.
LOST_PART = "Checkpoint block rdd_"


#: Messages of delta-rs in a process without credentials for an object store.
NO_CREDENTIALS = re.compile(
    r"error occurred while loading credentials|http://169\.254\.169\.254/|metadata\.google\.internal|"
    r"no (?:credentials found|providers) in chain"
)
#: Remedies where this command or executors have no credentials.
NEEDS_CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN of temporary ones (for other stores those "
    "that delta-rs names), in the environment of this command or by --storage-option, which are sent to executors; a "
    "profile or a file of credentials on this machine is not"
)


def reason_of_store(error: Exception | str) -> str:
    """Return the reason for a failure of a store on this machine, with the remedy if credentials are missing."""
    reason = reason_of_delta(error)
    if NO_CREDENTIALS.search(reason) is None:
        return reason
    return f"this command has no credentials for the object store ({reason}): {NEEDS_CREDENTIALS}"


def reason_of_delta(error: Exception | str) -> str:
    """Return the message of an exception of delta-rs in one line, without colours and the frames of a stack."""
    text = _ARROW.sub(": ", COLOURS.sub("", _FRAMES.split(str(error), maxsplit=1)[0]))
    return " ".join(text.split())[:500]
