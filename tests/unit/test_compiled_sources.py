"""Digest of the compiled modules that only tests use."""

from pathlib import Path

import pytest

from tests.support.compiled import digest


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return a folder of test sources and a package with one declaration."""
    sources, package = tmp_path / "sources", tmp_path / "package"
    for folder, name in ((sources, "_probe.pyx"), (package, "_wheel.pxd")):
        folder.mkdir()
        (folder / name).write_text("# one\n")
    return sources, package


def test_an_edit_gives_another_digest(folders: tuple[Path, Path]) -> None:
    """The digest depends on sources and declarations, and not on other files."""
    sources, package = folders
    found = [digest(sources, package)]
    for edited in (sources / "_probe.pyx", package / "_wheel.pxd"):
        edited.write_text("# two\n")
        found.append(digest(sources, package))
    (package / "broker.py").write_text("# three\n")
    assert len(set(found)) == 3
    assert digest(sources, package) == found[-1]


def test_a_link_to_a_renamed_file_does_not_count(folders: tuple[Path, Path]) -> None:
    """A dangling link, as an editable install of an older tree has, does not change the digest."""
    before = digest(*folders)
    (folders[1] / "_old_name.pxd").symlink_to(folders[1] / "_gone.pxd")
    assert digest(*folders) == before
