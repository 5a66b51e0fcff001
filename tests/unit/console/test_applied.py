"""Submitted forms of the console, which are applied once."""

from concurrent.futures import ThreadPoolExecutor

from kbroker._core.clock import VirtualClock
from kbroker.console.applied import MAX_FORMS, MAX_RESULTS, RESULT_MS, Applied
from kbroker.console.site import View


def test_a_form_makes_its_change_once() -> None:
    applied = Applied(VirtualClock())
    assert [applied.claim(form, "Delete a") for form in ("1", "2", "1")] == [True, True, False]
    assert applied.claim("3", "Delete b")
    assert [applied.last(title) for title in ("Delete a", "Delete b", "Delete c")] == ["2", "3", ""]


def test_the_latest_forms_are_kept() -> None:
    applied = Applied(VirtualClock())
    assert all(applied.claim(str(number), "t") for number in range(MAX_FORMS + 1))
    assert not applied.claim("1", "t")
    assert applied.claim("0", "t"), "displaced"


def test_results_are_kept_briefly_for_their_owner() -> None:
    clock = VirtualClock()
    applied, page = Applied(clock), View("Password", "secret.html", {})
    applied.keep("1", "alice", page)
    assert [applied.result(form, owner) for form, owner in (("1", "alice"), ("1", "bob"), ("2", "alice"))] == [
        page, None, None,
    ]  # fmt: skip
    for number in range(MAX_RESULTS):
        applied.keep(f"more {number}", "alice", page)
    assert applied.result("1", "alice") is None, "displaced"
    clock.advance_ms(RESULT_MS)
    assert applied.result(f"more {number}", "alice") is None, "expired"


def test_a_form_sent_twice_at_once_is_applied_by_one_request_at_a_time() -> None:
    applied = Applied(VirtualClock())
    with ThreadPoolExecutor(1) as other:

        def enter() -> str:
            with applied.alone("1"):
                return order[-1]

        with applied.alone("1"):
            order = ["begun"]
            second = other.submit(enter)
            with applied.alone("2"):
                order.append("ended")
        assert second.result() == "ended"
