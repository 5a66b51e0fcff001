"""Make the file system of kbroker's container image in a folder: `python .ci/image/filesystem.py FOLDER`

The image has no package manager and no distribution. It has this interpreter with the parts of the standard library
that a broker and its tools need, the packages below, bash, busybox for all other programs, the shared libraries of
each, and the files in `.ci/image/files`. Containerfile runs this program in its build stage; the tests run it on the
machine itself, and the result in a chroot.

Run it with the Python that has kbroker installed, as root for a folder whose files belong to the image's user.
"""

from __future__ import annotations

import compileall
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from py_compile import PycInvalidationMode

FILES = Path(__file__).with_name("files")
APP = Path("opt/kbroker")
#: The user of the image. Its group is root's, as platforms that choose the user at random give it that group.
USER_NAME, USER_ID, GROUP_ID = "appuser", 1000, 0
#: Distributions beside kbroker: what the broker, its console, client telemetry and PKCS 12 stores need.
PACKAGES = (
    "click",
    "cramjam",
    "Jinja2",
    "MarkupSafe",
    "prometheus-client",
    "protobuf",
    "opentelemetry-proto",
    "PyYAML",
    "cryptography",
    "cffi",
)
LEFT_OUT_OF_STDLIB = {
    "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "turtle.py", "ensurepip",
    "lib2to3", "pydoc_data", "distutils", "venv", "lib-tk", "__pycache__", "__phello__", "msilib", "curses", "sqlite3",
}  # fmt: skip
LEFT_OUT_OF_LIB = re.compile(r"_tkinter|_test|_xxtestfuzz|xxlimited|_ctypes_test|_sqlite3|_curses|readline|_dbm|_gdbm")
LEFT_OUT_OF_PACKAGES = shutil.ignore_patterns(
    "*.pyx", "*.pxd", "*.pyi", "*.h", "*.c", "*.cpp", "*.hpp", "__pycache__", "tests", "RECORD", "INSTALLER"
)
WRITABLE = ("opt/kafka", "etc/kafka", "etc/confluent", "var/lib/kafka", "work", "mnt/shared/config", "home/appuser")
TOOLS = (
    "kafka-topics",
    "kafka-broker-api-versions",
    "kafka-console-producer",
    "kafka-console-consumer",
    "kafka-storage",
)


def main(root: Path) -> None:
    """Make the file system below an empty or new folder."""
    root.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        if Path("/", name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    for name in ("dev", "proc", "sys", "run", "root", "tmp", "var/tmp", "opt/kafka/logs", "opt/kafka/config/kraft",
                 "etc/kafka/secrets", "var/lib/kafka/data", "mnt/shared/config", "home/appuser"):  # fmt: skip
        (root / name).mkdir(parents=True, exist_ok=True)
    _copy_python(root)
    _copy_packages(root)
    _copy_shells(root)
    _copy_system_files(root)
    _copy_libraries(root)
    _index_libraries(root)
    shutil.copytree(FILES, root, dirs_exist_ok=True)
    _link_tools(root)
    _strip(root)
    for folder in (_stdlib(root), root / APP):
        compileall.compile_dir(
            folder, quiet=2, stripdir=str(root), force=True, workers=1,
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )  # fmt: skip
    _write_packages_of_the_system(root)
    _set_owners(root)


def _inside(root: Path, path: str | Path) -> Path:
    """Return the place in the image of an absolute path here, with its folder made."""
    found = root / str(path).lstrip("/")
    found.parent.mkdir(parents=True, exist_ok=True)
    return found


def _copy(root: Path, path: str | Path) -> None:
    """Copy a file, and each symbolic link on the way to it."""
    found = Path(path)
    while True:
        place = _inside(root, found)
        if found.is_symlink():
            if not place.is_symlink():
                place.symlink_to(os.readlink(found))
            found = found.parent / os.readlink(found)
            continue
        if not place.exists():
            shutil.copy2(found, place)
        return


def _stdlib(root: Path) -> Path:
    return _inside(root, os.__file__).parent


def _copy_python(root: Path) -> None:
    _copy(root, os.path.realpath(sys.executable))
    (root / APP / "bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (root / APP / "bin" / name).symlink_to(os.path.realpath(sys.executable))
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    home = Path(os.path.realpath(sys.executable)).parent
    (root / APP / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n", encoding="utf-8")
    (root / APP / "lib" / version / "site-packages").mkdir(parents=True)

    def left_out(folder: str, names: list[str]) -> set[str]:
        return {
            name
            for name in names
            if name in LEFT_OUT_OF_STDLIB or name.startswith("config-") or LEFT_OUT_OF_LIB.match(name)
        }

    shutil.copytree(Path(os.__file__).parent, _stdlib(root), ignore=left_out, dirs_exist_ok=True)


def _copy_packages(root: Path) -> None:
    (site,) = (root / APP / "lib").glob("*/site-packages")
    _copy_package(site, "kbroker")
    for name in PACKAGES:
        distribution = metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or () if not file.parts[0].startswith("..")}
        for top in sorted(tops - {"__pycache__"}):
            source = Path(str(distribution.locate_file(top)))
            if source.is_dir():
                shutil.copytree(source, site / top, ignore=LEFT_OUT_OF_PACKAGES, dirs_exist_ok=True)
            else:
                shutil.copy2(source, site / top)
    folder = Path(str(metadata.distribution("kbroker").locate_file("")))
    information = folder / f"kbroker-{metadata.version('kbroker')}.dist-info"
    shutil.copytree(information, site / information.name, ignore=LEFT_OUT_OF_PACKAGES)
    program = root / APP / "bin" / "kbroker"
    program.write_text(f"#!/{APP}/bin/python\nfrom kbroker.__main__ import main\nmain()\n", encoding="utf-8")
    program.chmod(0o755)


def _copy_package(site: Path, name: str) -> None:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        sys.exit(f".ci/image/filesystem.py needs {name} in the packages of {sys.executable}")
    source = Path(spec.origin).parent
    shutil.copytree(source, site / name, ignore=LEFT_OUT_OF_PACKAGES)  # links of an editable install become files


def _copy_shells(root: Path) -> None:
    _copy(root, os.path.realpath(_program("bash")))
    busybox = _program("busybox")
    shutil.copy2(os.path.realpath(busybox), root / "usr/bin/busybox")
    for name in subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split():
        place = root / "usr/bin" / name
        if not place.exists() and name not in ("dpkg", "dpkg-deb", "rpm", "init", "linuxrc"):
            place.symlink_to("busybox")


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        package = {"busybox": "busybox-static", "strip": "binutils"}.get(name, name)
        sys.exit(f".ci/image/filesystem.py needs {name}; on Debian: apt-get install {package}")
    return found


def _copy_system_files(root: Path) -> None:
    (root / "etc/passwd").write_text(
        f"root:x:0:0:root:/root:/bin/sh\n{USER_NAME}:x:{USER_ID}:{GROUP_ID}:{USER_NAME}:/home/{USER_NAME}:/bin/bash\n",
        encoding="utf-8",
    )
    (root / "etc/group").write_text(f"root:x:0:\n{USER_NAME}:x:{USER_ID}:\n", encoding="utf-8")
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n", encoding="utf-8")
    (root / "etc/os-release").write_text('ID=kbroker\nNAME="kbroker"\nPRETTY_NAME="kbroker"\n', encoding="utf-8")
    for name in ("/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/openssl.cnf"):
        if os.path.exists(name):
            _copy(root, name)


def _copy_libraries(root: Path) -> None:
    """Copy the shared libraries of every program and library in the image."""
    for name in ("libgcc_s.so.1", "libnss_dns.so.2", "libnss_files.so.2", "libresolv.so.2"):  # loaded at run time
        for folder in ("/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu"):
            if os.path.exists(f"{folder}/{name}"):
                _copy(root, f"{folder}/{name}")
    for path in _elf_files(root):
        done = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False)
        for library in re.findall(r"(/\S+) \(0x", done.stdout):
            if not library.startswith(str(root)):
                _copy(root, library)


def _index_libraries(root: Path) -> None:
    """Write the loader's index: it searches no other folder than the system's without it."""
    (root / "etc/ld.so.conf").write_text("/usr/local/lib\n", encoding="utf-8")
    subprocess.run([shutil.which("ldconfig") or "/sbin/ldconfig", "-r", str(root)], check=True)


def _elf_files(root: Path) -> list[Path]:
    found = []
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    found.append(path)
    return found


def _strip(root: Path) -> None:
    files = [str(path) for path in _elf_files(root) if path.name != "busybox"]
    for at in range(0, len(files), 50):
        subprocess.run([_program("strip"), "--strip-unneeded", *files[at : at + 50]], check=True)


def _link_tools(root: Path) -> None:
    folder = root / "opt/kafka/bin"
    for name in TOOLS:
        (folder / f"{name}.sh").symlink_to("kafka-tool")
    for path in sorted(folder.glob("*.sh")):
        (root / "usr/bin" / path.stem).symlink_to(f"/opt/kafka/bin/{path.name}")


def _write_packages_of_the_system(root: Path) -> None:
    """Write the dpkg records of the packages whose files are in the image, for scanners of vulnerabilities."""
    if shutil.which("dpkg-query") is None:
        return
    paths = [str(path)[len(str(root)) :] for path in _elf_files(root) if (root / APP) not in path.parents]
    wanted = [name for path in paths for name in {path, path.removeprefix("/usr")}]
    done = subprocess.run(["dpkg-query", "-S", *wanted], capture_output=True, text=True, check=False)
    names = {line.partition(": ")[0] for line in done.stdout.splitlines()}
    status = _inside(root, "/var/lib/dpkg/status")
    records = subprocess.run(["dpkg-query", "-s", *sorted(names)], capture_output=True, text=True, check=True)
    status.write_text(records.stdout, encoding="utf-8")


def _set_owners(root: Path) -> None:
    (root / "tmp").chmod(0o1777)
    (root / "var/tmp").chmod(0o1777)
    for path in _below(root, WRITABLE):
        if not path.is_symlink():  # what the user may write, the group may
            mode = path.stat().st_mode
            path.chmod(mode | (mode & 0o700) >> 3)
        if os.geteuid() == 0:
            os.chown(path, USER_ID, GROUP_ID, follow_symlinks=False)


def _below(root: Path, folders: Sequence[str]) -> Iterable[Path]:
    for name in folders:
        yield root / name
        yield from (root / name).rglob("*")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python .ci/image/filesystem.py FOLDER")
    main(Path(sys.argv[1]))
