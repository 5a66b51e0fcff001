"""Messages about a Python of Spark's executors that cannot run kbroker's functions."""

import json
import sys

import pytest

import kbroker
from kbroker.spark.errors import PipelineError
from kbroker.spark.executors import _judge, _looker, _minor

FOUND = {"host": "w3", "executable": "/usr/bin/python3", "python": _minor(), "kbroker": kbroker.__version__}


def test_this_python_will_do() -> None:
    """The check of an executor finds kbroker and its compiled modules in this interpreter."""
    found = json.loads(_looker(("kbroker",))(0))
    assert (found["kbroker"], found["executable"]) == (kbroker.__version__, sys.executable)
    _judge(found, "Spark's executor", "do this")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"no kbroker": "ModuleNotFoundError: x"}, "has no kbroker (ModuleNotFoundError: x): do this"),
        ({"no pandas": "x"}, "has no pandas (x): do this"),
        ({"python": "3.4"}, f"is 3.4, and this command's is {_minor()}: do this"),
        ({"kbroker": "0.0.1"}, f"has kbroker 0.0.1, and this command has {kbroker.__version__}: do this"),
    ],
)
def test_what_it_lacks_is_named(change: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineError) as caught:
        _judge({**FOUND, **change}, "Spark's executor", "do this")
    assert str(caught.value) == f"the Python of Spark's executor on w3 (/usr/bin/python3) {said}"


def test_a_module_that_is_missing_is_reported_with_its_reason() -> None:
    """The check itself requires only Python."""
    found = json.loads(_looker(("kbroker_nowhere",))(0))
    assert found["no kbroker_nowhere"] == "ModuleNotFoundError: No module named 'kbroker_nowhere'"
