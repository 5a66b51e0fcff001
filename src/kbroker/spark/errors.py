"""Failures of the pipeline that its user can mend."""


class PipelineError(Exception):
    """What is missing or wrong and what to do, in one sentence; the command line prints it without a traceback."""


#: What Spark says when a stream has waited ten seconds and its Python worker has not started; nothing sets that time.
#: On a busy machine it happens, before anything was read: the query can be started again.
NO_WORKER = "Python worker failed to connect back"
