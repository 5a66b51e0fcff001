"""Forms whose changes were made."""

from kbroker.console.applied import MAX_FORMS, Applied


def test_a_form_makes_its_change_once() -> None:
    applied = Applied()
    assert [applied.claim(form, "Delete a") for form in ("1", "2", "1")] == [True, True, False]
    assert applied.claim("3", "Delete b")
    assert [applied.last(title) for title in ("Delete a", "Delete b", "Delete c")] == ["2", "3", ""]


def test_the_latest_forms_are_kept() -> None:
    applied = Applied()
    assert all(applied.claim(str(number), "t") for number in range(MAX_FORMS + 1))
    assert not applied.claim("1", "t")
    assert applied.claim("0", "t"), "displaced"
