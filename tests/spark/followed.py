"""Program for the tests: run `watch --json` until a line contains a text, press Ctrl-C, print the summary.

    python -m tests.spark.followed TEXT PROGRAM -m kbroker pipeline watch TABLE ...

The JSON has `requests` in addition to the output of `watch`: the requests of all usage rows in the table's data files.
"""

import json
import re
import sys

from kbroker.spark.tables.delta_table import Table
from kbroker.spark.tables.file_reader import read_columns
from tests.spark.watching import follow


def main(text: str, *call: str) -> None:
    found, said = follow(call, f".*{re.escape(text)}")
    table = Table(call[call.index("watch") + 1])
    rows = read_columns(table.place, [one.path for one in table.files()], ["view", "requests"]).to_pylist()
    print(json.dumps({**found, "requests": sum(row["requests"] for row in rows if row["view"] == "usage")}))
    sys.stderr.write(said)


main(*sys.argv[1:])
