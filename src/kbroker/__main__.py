"""The `kbroker` program, also `python -m kbroker`: it prints no traceback after a signal."""

import signal
import sys

_LEAVE_ON = (signal.SIGINT, signal.SIGTERM)


def _leave(number: int, frame: object) -> None:
    """End by the signal's default; as process 1 of a container, which ignores that, exit with the same status."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    import os

    os._exit(128 + number)


def main() -> None:
    """Run the command line. A signal that is ignored (`nohup`, `&` in a script) stays ignored."""
    for number in _LEAVE_ON:
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(number, _leave)
    if sys.argv[1:2] == ["serve"]:
        _serve(sys.argv[2:])
    from kbroker.cli import cli  # takes longer than all before

    cli(prog_name="kbroker")


def _serve(words: list[str]) -> None:
    """Run a broker and exit; return if only the full command line can handle the words: help, errors."""
    import gc

    gc.disable()  # nothing that is loaded now is garbage: looking at it took a tenth of the start
    from kbroker import serving

    options = serving.plain_options(words)
    if options is None:
        gc.enable()
        return
    try:
        serving.serve(options)
        sys.stdout.flush()
    except serving.OptionError:
        gc.enable()
        return
    except serving.ServeError as error:
        from kbroker.cli import failed

        sys.exit(failed(str(error), error.status))
    except Exception as error:
        from kbroker.cli import status_after

        sys.exit(status_after(error))
    sys.exit(0)


if __name__ == "__main__":
    main()
