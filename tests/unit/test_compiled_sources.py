"""Sources of the modules that only tests use."""

from pathlib import Path

import pytest

from tests.support.compiled import digest


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Sources of a test, and a package with one declaration."""
    sources, package = tmp_path / "sources", tmp_path / "package"
    for folder, name in ((sources, "_probe.pyx"), (package, "_wheel.pxd")):
        folder.mkdir()
        (folder / name).write_text("# one\n")
    return sources, package


def test_an_edit_gives_another_digest(folders: tuple[Path, Path]) -> None:
    """The digest depends on sources and declarations; other files do not count."""
    sources, package = folders
    found = [digest(sources, package)]
    for edited in (sources / "_probe.pyx", package / "_wheel.pxd"):
        edited.write_text("# two\n")
        found.append(digest(sources, package))
    (package / "broker.py").write_text("# three\n")
    assert len(set(found)) == 3
    assert digest(sources, package) == found[-1]


def test_a_link_to_a_renamed_file_does_not_count(folders: tuple[Path, Path]) -> None:
    """An editable install of an older tree has such links; its tests still find what they were compiled from."""
    before = digest(*folders)
    (folders[1] / "_old_name.pxd").symlink_to(folders[1] / "_gone.pxd")
    assert digest(*folders) == before
