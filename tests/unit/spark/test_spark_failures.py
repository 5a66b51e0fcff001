"""Sentences about failures, from the errors of Spark, Java and Python."""

import pytest

from kbroker.spark.failures import cause, is_of_spark, sentence, with_workers

STREAM = (
    "[STREAM_FAILED] Query [id = a] terminated with exception: [FOREACH_BATCH] An error occurred: org.apache.spark.api."
    'PythonException: Traceback (most recent call last):\n  File "x.py", line 1\nValueError: first\n\nkbroker.spark.'
    "errors.PipelineError: the rows are not there\n SQLSTATE: XXKST\n=== Streaming Query ==="
)
JOB = (
    "An error occurred while calling o65.collectToPython.\n: org.apache.spark.SparkException: Job aborted due to stage "
    "failure: Task 0 failed 4 times, most recent failure: Lost task 0.3\nDriver stacktrace:\n\tat org.apache.spark.X\n"
    "Caused by: java.io.IOException: No space left on device\n\t... 1 more\n"
)
#: A batch of a stream whose shuffle has no space: a Java error inside a Python error inside a Java error.
BATCH = (
    "[STREAM_FAILED] Query [id = a] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred: "
    'Traceback (most recent call last):\n  File "x.py", line 1\npy4j.protocol.Py4JJavaError: An error occurred while '
    "calling o1392.getResult.\n: org.apache.spark.SparkException: Exception thrown in awaitResult: \n\tat org.apache."
    "spark.X\nCaused by: java.io.IOException: No space left on device\n\t... 1 more\n SQLSTATE: XXKST\n=== Streaming"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (STREAM, "the rows are not there"),
        (JOB, "No space left on device"),
        (BATCH, "No space left on device"),
        (
            "An error occurred while calling o1.x.\n: java.lang.IllegalStateException: Cannot call methods on a "
            "stopped SparkContext.\n\tat a.b",
            "IllegalStateException: Cannot call methods on a stopped SparkContext.",
        ),
        (
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: ExitCodeException "
            "exitCode=2: \ngzip: env.tar.gz: not in gzip format\ntar: Exiting with failure status\n\n\tat a.b",
            "ExitCodeException exitCode=2: gzip: env.tar.gz: not in gzip format tar: Exiting with failure status",
        ),
        (
            "[STREAM_FAILED] Query [id = a] terminated with exception: [CONCURRENT_STREAM_LOG_UPDATE] Concurrent "
            "update to the log. Multiple streaming jobs detected for 0. SQLSTATE: 40000",
            "another process runs a stream with this checkpoint: give each checkpoint one process",
        ),
        (
            "Traceback (most recent call last):\n  File x\nOSError: Generic S3 error\n   \x1b[31m\u21b3\x1b[0m Error "
            "performing PUT http://store/t\n    \x1b[31m\u21b3\x1b[0m Connection refused (os error 111)\n\n\tat a.b",
            "OSError: Generic S3 error: Error performing PUT http://store/t: Connection refused (os error 111)",
        ),
        ("something plain\nand more", "something plain"),
        ("", "no reason was given"),
    ],
)
def test_the_cause_is_found(text: str, said: str) -> None:
    assert cause(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "OSError: Operation not supported\n \x1b[31m\u21b3\x1b[0m an error occurred while loading credentials\n "
            "\x1b[31m\u21b3\x1b[0m failed to load IMDS session token\n\n\tat org.apache.spark.X",
            "Spark's executors have no credentials for the object store (OSError: Operation not supported: an error "
            "occurred while loading credentials: failed to load IMDS session token): set AWS_ACCESS_KEY_ID and ",
        ),
        (
            "x\nModuleNotFoundError: No module named 'kbroker'\n",
            "the Python of Spark's executors has no kbroker: install",
        ),
        (
            'Caused by: java.io.IOException: Cannot run program "/opt/python": error=2, No such file',
            "Spark's executors have no program /opt/python: install",
        ),
        (
            "org.apache.spark.SparkException: EOFException occurred while reading the port number from "
            "pyspark.daemon's stdout.",
            "the Python of Spark's executors does not start: install",
        ),
        (
            "An error occurred\n: java.lang.NoClassDefFoundError: software/amazon/awssdk/core/SdkException\nCaused by: "
            "java.lang.ClassNotFoundException: software.amazon.awssdk.core.SdkException\n",
            "Spark's JVM has no class software/amazon/awssdk/core/SdkException: a jar of Hadoop's client",
        ),
        (
            "org.apache.spark.SparkException: Python worker failed to connect back.\nCaused by: java.net."
            "SocketTimeoutException: Timed out while waiting for the Python worker to connect back\n",
            "a Python worker of Spark did not start within the ten seconds that Spark waits: its machine is too busy",
        ),
        (
            "java.lang.RuntimeException: java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a."
            "S3AFileSystem not found",
            "Spark has no Hadoop client for this store, which --checkpoint names: give Spark its jars",
        ),
    ],
)
def test_what_executors_lack_is_named(text: str, said: str) -> None:
    assert sentence(RuntimeError(text)).startswith(said)


def test_a_job_without_a_worker_is_begun_again() -> None:
    """A job is run at most three times, and only after this failure."""

    class SparkError(RuntimeError):
        __module__ = "pyspark.errors"

    failures: list[Exception] = []
    begun = 0

    def job() -> int:
        nonlocal begun
        begun += 1
        if failures:
            raise failures.pop(0)
        return begun

    late = SparkError("Timed out while waiting for the Python worker to connect back")
    failures[:] = [late, SparkError("Python worker failed to connect back.")]
    assert with_workers(job) == 3
    begun, failures[:] = 0, [late] * 4
    with pytest.raises(SparkError, match="Timed out while waiting"):
        with_workers(job)
    assert begun == 3
    for other in (SparkError("No space left"), RuntimeError(str(late))):
        begun, failures[:] = 0, [other]
        with pytest.raises(RuntimeError):
            with_workers(job)
        assert begun == 1


def test_a_sentence_is_short() -> None:
    assert len(sentence(RuntimeError("x" * 10_000))) == 500
    assert "\n" not in sentence(RuntimeError(JOB))
    assert not is_of_spark(RuntimeError())


def test_another_version_of_python_is_said() -> None:
    """The text is that of PySpark 4.2."""
    said = (
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10 than that in driver: 3.11, PySpark "
        "cannot run with different minor versions."
    )
    assert sentence(RuntimeError(said)).startswith("Spark's executors run Python 3.10 and this command 3.11: install ")
