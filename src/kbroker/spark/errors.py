"""Failures of the pipeline that its user can mend."""


class PipelineError(Exception):
    """What is missing or wrong and what to do, in one sentence; the command line prints it without a traceback."""
