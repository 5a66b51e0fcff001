"""Design rules that a compiler does not check, verified in the sources."""

import ast
import graphlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from kbroker.common.errors import Errors
from kbroker.protocol import batch_format
from kbroker.protocol.compression import CompressionType
from tests.support.broker import run_to_end

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"

# Lower layers first. A package may import itself and packages of lower layers; packages of one layer do not import each
# other.
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
LAYERS = [
    re.findall(r"kbroker\.(\w+)", row) for row in next(c for c in CONTRACTS if c["id"] == "layers")["layers"][::-1]
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
IMPORT = re.compile(r"^\s*(?:from\s+kbroker\.(\w+)[\w.]*\s+c?import|c?import\s+kbroker\.(\w+))", re.MULTILINE)
FROM_ROOT = re.compile(r"^\s*from\s+kbroker\s+c?import\s+(\w+)", re.MULTILINE)

CLOCK_READS = re.compile(
    r"clock_gettime|gettimeofday|clock_nanosleep|QueryPerformanceCounter|mach_absolute_time|GetSystemTimePreciseAsFileTime"
    r"|(?:steady|system|high_resolution)_clock"
    r"|\btime\.(?:time|monotonic|perf_counter|process_time|thread_time)(?:_ns)?\b"
    r"|from time import|datetime\.(?:now|utcnow|today)\b|\bPyTime_"
)
# The clock itself, and the waits of the standard library that need a clock.
CLOCK_READERS = {"src/_core/clock", "src/_core/sync"}
# Programs outside a broker: the client takes its clock as an argument too, with Python's clock as the default.
OUTSIDE_A_BROKER = {"client", "cli"}


def sources(*suffixes: str, below: Path = SRC) -> list[Path]:
    """Return the source files without those below the link src/kbroker/_core."""
    link = SRC / "kbroker" / "_core"
    return sorted(p for p in below.rglob("*") if p.suffix in suffixes and p.is_file() and link not in p.parents)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room(path: Path) -> str:
    """Return the package of a source file: _core, common, protocol, ..."""
    inside = path.relative_to(SRC)
    if inside.parts[0] == "_core":
        return "_core"
    return inside.parts[1].split(".")[0] if len(inside.parts) > 1 else ""


def without_comments(text: str) -> str:
    """Return Cython or C text with comments and string literals blanked and line breaks kept."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group())

    return re.sub(
        r'("""|\'\'\').*?\1|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#(?!include|define|if|end)[^\n]*',
        blank,
        text,
        flags=re.DOTALL,
    )


def test_dependencies_point_down() -> None:
    """No package imports a package above it, in compiled sources either, which import-linter does not read."""
    wrong = []
    for path in sources(".py", ".pyx", ".pxd", ".pyi"):
        here = room(path)
        if here not in LEVEL:
            continue
        text = path.read_text(encoding="utf-8")
        found = {a or b for a, b in IMPORT.findall(text)} | set(FROM_ROOT.findall(text))
        for other in found & set(LEVEL):
            if other != here and LEVEL[other] >= LEVEL[here]:
                wrong.append(f"{relative(path)} imports kbroker.{other}")
    assert wrong == []


def test_every_room_has_its_layer() -> None:
    """Each package below kbroker has its place among the layers."""
    rooms = {p.name for p in (SRC / "kbroker").iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert rooms - set(LEVEL) == set()


# Sub-packages, lower ones first; "" is the modules directly in the package. Each may use itself and those before it.
# Packages whose parts refer to each other (log) list only the forbidden pairs.
ORDER = {
    "kbroker._core": ["", "containers", "metrics", "requests", "codec", "timer", "network"],
    "kbroker.metadata": ["records", "image", "log"],
    "kbroker.network": ["connections", "transport"],
    "kbroker.spark": ["", "tables", "usage_views", "setup", "datasource", "whatif", "report", "watch"],
}
FORBIDDEN = {
    # Handlers request changes from a part; only the parts make records of them, and only the controller uses storage.
    *(
        (room, f"kbroker.metadata.{part}")
        for room in ("kbroker.apis", "kbroker.handlers")
        for part in ("log", "records")
    ),
    # The image is independent of the writers of the records that change it.
    *(
        ("kbroker.metadata.image", f"kbroker.metadata.{part}")
        for part in ("controller", "log", "registration", "topics")
    ),
    ("kbroker.log.segment", "kbroker.log.compaction"),
    ("kbroker.log.producers", "kbroker.log.compaction"),
    ("kbroker.log.producers", "kbroker.log.segment"),
    ("kbroker.network.connections", "kbroker.network.processor"),
    ("kbroker.network.transport", "kbroker.network.processor"),
}
ANY_IMPORT = re.compile(r"^\s*(?:from\s+(kbroker[\w.]*)\s+c?import|c?import\s+(kbroker[\w.]*))", re.MULTILINE)

NAMES = re.compile(r"^\s*from\s+(kbroker[\w.]*)\s+c?import\s+(\([^)]*\)|[^\n]*)", re.MULTILINE)


def dotted(path: Path) -> str:
    """Return the module name of a source file: src/_core/clock.pyx is kbroker._core.clock."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts if parts[0] == "kbroker" else ("kbroker", *parts))


def test_sub_packages_keep_their_order() -> None:
    """Dependencies inside a package point down too, compiled sources included."""
    wrong = []
    for path in sources(".py", ".pyx", ".pxd"):
        here = dotted(path)
        text = path.read_text(encoding="utf-8")
        found = {a or b for a, b in ANY_IMPORT.findall(text)}
        found |= {f"{package}.{name}" for package, names in NAMES.findall(text) for name in re.findall(r"\w+", names)}
        for room_name, order in ORDER.items():
            inside = here.removeprefix(room_name + ".")
            mine = inside.rpartition(".")[0].partition(".")[0]
            if inside == here or mine not in order:
                continue
            for name in found:
                other = name.removeprefix(room_name + ".")
                part = other.partition(".")[0] if "." in other else ""
                if other != name and part in order and order.index(part) > order.index(mine):
                    wrong.append(f"{relative(path)} imports {name}")
        for below, above in FORBIDDEN:
            wrong += [
                f"{relative(path)} imports {name}"
                for name in found
                if f"{here}.".startswith(below + ".") and f"{name}.".startswith(above + ".")
            ]
    assert wrong == []


def nogil_regions(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines (number, text) of `with nogil:` blocks and nogil functions, except those under `with gil:`."""
    free: int | None = None  # indent of the line that opened the region without the GIL
    held: int | None = None  # indent of a `with gil:` inside it
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if held is not None and indent <= held:
            held = None
        if free is not None and indent <= free:
            free = None
        if free is None:
            if re.search(r"\bnogil\s*:\s*$", line) and "extern" not in line:
                free = indent
        elif held is None:
            if re.match(r"\s*with gil\s*:", line):
                held = indent
            else:
                yield number, line


def extension_types() -> set[str]:
    """Return the names of all cdef classes: a cast of a pointer to such a class creates a Python object."""
    found = {"object", "bytes", "dict", "list", "str", "tuple"}
    for path in sources(".pyx", ".pxd"):
        found |= set(
            re.findall(r"^\s*cdef\s+class\s+([\w.]+)", without_comments(path.read_text(encoding="utf-8")), re.MULTILINE)
        )
    return {name.rpartition(".")[2] for name in found}


def test_no_cast_to_a_python_class_without_the_gil() -> None:
    """`(<Partition>pointer).f()` without the GIL would call a method on an object without a reference."""
    cast = re.compile(r"<\s*(" + "|".join(sorted(map(re.escape, extension_types()))) + r")\s*\??>")
    wrong = []
    for path in sources(".pyx", ".pxd"):
        for number, line in nogil_regions(without_comments(path.read_text(encoding="utf-8"))):
            if cast.search(line):
                wrong.append(f"{relative(path)}:{number}: {line.strip()}")
    assert wrong == []


def test_the_search_for_casts_can_find_one() -> None:
    """The search finds casts in nogil functions and blocks, and ignores casts outside them or under the GIL."""
    function = "cdef void f(void *p) noexcept nogil:\n    (<Thing>p).go()\n    with gil:\n        <Thing>p\n"
    text = function + "def g():\n    x = <Thing>p\n    with nogil:\n        h(<Thing>p)\n"
    assert [number for number, line in nogil_regions(text) if "<Thing>" in line] == [2, 8]


def test_no_file_has_more_than_600_lines() -> None:
    """Each file, tests included, treats one subject in at most 600 lines."""
    files = [*sources(".py", ".pyx", ".pxd", ".pyi", ".h"), *(ROOT / "tests").rglob("*.py")]
    sizes = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert len(sizes) > 1_000
    assert {name: lines for name, lines in sizes.items() if lines > 600} == {}


def test_the_architecture_names_files_that_exist() -> None:
    """Each file or folder that ARCHITECTURE names is in the tree."""
    text = (ROOT / ".github" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./-]+\.(?:pyx|pxd|pyi|py|h|c|txt|json)|[\w-]+/[\w/-]+)`", text))
    named.remove("apis/apiNN_name.py")  # the form of all names there
    paths = {f"/{path.relative_to(ROOT)}" for room in ("src", "tests", "bench") for path in (ROOT / room).rglob("*")}
    assert len(named) > 100
    assert {name for name in named if not any(path.endswith(f"/{name.rstrip('/')}") for path in paths)} == set()


def test_no_clock_is_read_but_by_the_clock() -> None:
    """Time is a parameter: only the clock modules read a system clock."""
    wrong = []
    for path in sources(".py", ".pyx", ".pxd", ".h"):
        name = relative(path)
        if name.partition(".")[0] in CLOCK_READERS or room(path) in OUTSIDE_A_BROKER:
            continue
        text = without_comments(path.read_text(encoding="utf-8"))
        for number, line in enumerate(text.splitlines(), 1):
            if CLOCK_READS.search(line) and not line.lstrip().startswith(("//", "*", "/*")):
                wrong.append(f"{name}:{number}: {line.strip()}")
    assert wrong == []


def test_each_thread_has_a_name_for_the_system() -> None:
    """Threads are made by ``new_thread``, whose names top, perf and debuggers show."""
    makers = [relative(p) for p in sources(".py", ".pyx") if "threading.Thread(" in p.read_text(encoding="utf-8")]
    assert makers == ["src/kbroker/common/threads.py"]


@pytest.mark.parametrize("folder", ["unit", "property"])
def test_no_sleep_in_fast_tests(folder: str) -> None:
    """Unit and property tests move a virtual clock or wait for a condition; they never sleep."""
    wrong = []
    for path in sources(".py", below=ROOT / "tests" / folder):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep", "asyncio.sleep"):
                wrong.append(f"{relative(path)}:{node.lineno}")
    assert wrong == []


def test_no_retired_cython() -> None:
    """No source uses `include`, `DEF` or `IF`, which Cython is about to remove."""
    retired = re.compile(r"^\s*(?:include\s+[\"']|DEF\s|IF\s.*:)", re.MULTILINE)
    found = [relative(p) for p in sources(".pyx", ".pxd") if retired.search(p.read_text(encoding="utf-8"))]
    assert found == []


def test_no_module_declares_itself_free_of_the_gil() -> None:
    """No module declares `freethreading_compatible`: one module without it enables the GIL for all (ARCHITECTURE)."""
    found = [relative(p) for p in sources(".pyx") if "freethreading_compatible" in p.read_text(encoding="utf-8")]
    assert found == []
    assert "freethreading_compatible" not in (ROOT / "setup.py").read_text(encoding="utf-8")


def test_nogil_functions_say_how_they_fail() -> None:
    """Each nogil function has `noexcept` or `except`: otherwise every call takes the GIL to check for an exception."""
    wrong = []
    declared = re.compile(
        r"^\s*cdef\s+(?!extern|class|struct|enum)[^=\n]*\([^\n]*\)([^\n)]*\bnogil\b[^\n]*)$", re.MULTILINE
    )
    for path in sources(".pyx", ".pxd"):
        text = without_comments(path.read_text(encoding="utf-8"))
        for found in declared.finditer(text):
            if not re.search(r"\bnoexcept\b|\bexcept\b", found.group(1)):
                wrong.append(f"{relative(path)}: {found.group().strip()[:100]}")
    assert wrong == []


def test_platform_code_is_behind_headers() -> None:
    """C headers include a platform's headers behind #ifdef; Cython sources never do."""
    platform = re.compile(r'cdef extern from "(sys/epoll|sys/event|sys/eventfd|sys/sendfile|windows|winsock2|mach/)')
    found = [relative(p) for p in sources(".pyx", ".pxd") if platform.search(p.read_text(encoding="utf-8"))]
    assert found == []


def test_serving_does_not_load_numpy() -> None:
    """`kbroker serve` loads neither NumPy, whose import would cost a third of the start, nor packages of extras."""
    program = (
        "import sys\n"
        "import kbroker.cli, kbroker.broker.broker\n"
        "names = ('numpy', 'asyncio', 'jinja2', 'pandas', 'pyarrow', 'pyspark')\n"
        "heavy = sorted(name for name in names if name in sys.modules)\n"
        "print(heavy)"
    )
    output = run_to_end([sys.executable, "-c", program])
    assert output.strip() == "[]"


def test_locked_versions_are_exact_and_name_no_host() -> None:
    """The lock pins every package by `==` and names no registry."""
    bound = r'python_version [<>]=? "3\.\d+"'
    for line in (ROOT / "tests" / "requirements.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            assert re.fullmatch(rf"[\w.-]+==[\w.]+(; {bound}( and {bound})?)?", line), line


def cdef_enums(text: str) -> dict[str, int]:
    """Return the names to which the `cdef enum`s of a source assign a literal number."""
    return {
        name: int(number, 0)
        for block in re.findall(r"^(?:cdef|cpdef) enum\b[^\n]*:\n((?:[ \t]+[^\n]*\n|\n)+)", text, re.MULTILINE)
        for name, number in re.findall(r"^\s+([A-Z_0-9]+) = (-?\w+)\s*$", without_comments(block), re.MULTILINE)
        if re.fullmatch(r"-?(?:0x)?[0-9a-fA-F]+", number)
    }


def test_shared_numbers_have_one_source() -> None:
    """No native source repeats the number of an error code, a codec or a batch field: setup.py generates their .pxd."""
    shared = {*Errors.__members__, *CompressionType.__members__, *(n for n in vars(batch_format) if n.isupper())}
    native = {path: cdef_enums(path.read_text(encoding="utf-8")) for path in sources(".pyx", ".pxd")}
    assert sum(len(numbers) for numbers in native.values()) > 100  # the search finds enums
    assert [f"{relative(path)}: {name}" for path, numbers in native.items() for name in shared & numbers.keys()] == []


def test_cimports_have_no_cycle() -> None:
    """Compiled modules depend on each other in one direction, inside a package too."""
    uses: dict[str, set[str]] = {}
    for path in sources(".pyx", ".pxd"):
        found = re.findall(r"^\s*(?:from|cimport)\s+(kbroker[\w.]*)(?=\s+cimport|\s*$)", path.read_text(), re.MULTILINE)
        uses.setdefault(dotted(path), set()).update(set(found) - {dotted(path)})
    assert sum(map(len, uses.values())) > 300  # the search finds cimports
    list(graphlib.TopologicalSorter(uses).static_order())
