"""Limit of open files."""

import pytest

from kbroker.common.open_files import MOST, raise_open_files_limit

resource = pytest.importorskip("resource")


@pytest.mark.parametrize(
    ("limits", "raised"),
    [
        ((1024, resource.RLIM_INFINITY), (MOST, resource.RLIM_INFINITY)),
        ((1024, 4096), (4096, 4096)),
        ((2 * MOST, resource.RLIM_INFINITY), None),
        ((2 * MOST, 4 * MOST), None),
    ],
)
def test_the_limit_is_never_lowered(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], raised: tuple[int, int] | None
) -> None:
    changes = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, wanted: changes.append(wanted))
    raise_open_files_limit(1 << 40)
    assert changes == ([] if raised is None else [raised])
