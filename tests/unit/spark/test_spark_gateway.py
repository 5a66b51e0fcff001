"""What is said of a JVM of Spark's that has not started."""

import pytest

from kbroker.spark.setup.gateway import why

MEMORY = " (is there memory for spark.driver.memory=1g?)"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], MEMORY),
        (
            [
                "26/01/02 03:04:05 WARN Utils: Your hostname resolves to a loopback address",
                'Exception in thread "main" org.apache.spark.SparkException: Master must either be yarn or ...',
                "\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1068)",
                "\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)",
            ],
            ": SparkException: Master must either be yarn or ...",
        ),
        (
            [
                "Invalid maximum heap size: -Xmx1XB",
                "Error: Could not create the Java Virtual Machine.",
                "Error: A fatal exception has occurred. Program will exit.",
            ],
            ": Invalid maximum heap size: -Xmx1XB" + MEMORY,
        ),
        (
            ["Error occurred during initialization of VM", "Too small maximum heap", ""],
            ": Too small maximum heap" + MEMORY,
        ),
        (["x: y", "\tat a.b(C.scala:1)", "\t... 3 more"], ": x: y" + MEMORY),
    ],
    ids=["nothing", "exception", "no heap", "small heap", "only a trace"],
)
def test_why_a_jvm_did_not_start(lines: list[str], said: str) -> None:
    """The reason, and no frame of its trace; memory is only asked for where nothing else is named."""
    assert why(lines, "1g") == said
