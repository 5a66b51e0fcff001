"""Start-up code of the Pythons that Spark starts with this folder in PYTHONPATH.

Spark puts a zip file of PySpark's sources first, which every process would compile in 0.5 s of CPU; the installed
package has byte code.
"""

import sys

zips = [path for path in sys.path if path.endswith(("pyspark.zip", "-src.zip"))]
sys.path[:] = [*(path for path in sys.path if path not in zips), *zips]
