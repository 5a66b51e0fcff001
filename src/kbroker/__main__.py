"""The `kbroker` program, also `python -m kbroker`: it prints no traceback after a signal."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # in the interpreter; `signal` takes milliseconds to load its enums
import os
import sys

TYPE_CHECKING = False  # in place of the one of `typing`, which takes milliseconds to load
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


def _leave(number: int, frame: object) -> None:
    """End by the signal's default action; if it has no effect (process 1 of a container), exit with the same status."""
    _signal.signal(number, _signal.SIG_DFL)
    _signal.raise_signal(number)
    os._exit(128 + number)


def leave_on(number: int) -> None:
    """Leave on a signal, unless it is ignored (`nohup`, `&` in a script) or another handler is set."""
    if _signal.getsignal(number) in (_signal.default_int_handler, _signal.SIG_DFL):
        _signal.signal(number, _leave)


if __name__ == "__main__" or "".join(sys.argv[:1]).endswith(("kbroker", "kbroker.exe", "-m")):
    leave_on(_signal.SIGINT)  # now: the script that imports this module calls main only after further steps


def main() -> None:
    """Run the command line."""
    leave_on(_signal.SIGINT)
    leave_on(_signal.SIGTERM)
    _open_closed_streams()
    if getattr(sys.stdout, "errors", "") == "strict":  # names and paths need not be UTF-8; as on standard error
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if sys.argv[1:2] == ["serve"]:
        _serve(sys.argv[2:])
    from kbroker.cli import cli  # this import takes longer than everything above

    cli(prog_name="kbroker")


def _open_closed_streams() -> None:
    """Open the null device in place of standard streams that are closed (`>&-`).

    A closed stream is None, and the next file or connection would get its descriptor.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # until the end of the process


def _serve(words: list[str]) -> None:
    """Run a broker and exit; return if only the full command line can handle the words: help, errors."""
    import gc

    gc.disable()  # nothing that is loaded during a start is garbage: scanning it took a tenth of the start
    from kbroker import serving

    options = serving.plain_options(words)
    try:
        if options is not None:
            exit_after(lambda: serving.serve(lambda: serving.properties_of(options)))
    except serving.OptionError:
        pass
    gc.enable()


def exit_after(run: Callable[[], None]) -> NoReturn:
    """Run a server, then exit with its status; print one line for a failure that is not a bug. Raises: OptionError."""
    from kbroker import serving

    try:
        run()
        sys.stdout.flush()
    except serving.OptionError:
        raise
    except serving.ServeError as error:
        from kbroker.cli import failed

        sys.exit(failed(str(error), error.status))
    except Exception as error:
        from kbroker.cli import status_after

        sys.exit(status_after(error))
    sys.exit(0)


if __name__ == "__main__":
    main()
