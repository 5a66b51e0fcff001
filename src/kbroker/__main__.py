"""The `kbroker` program, also `python -m kbroker`: it prints no traceback after a signal."""

import _signal  # type: ignore[import-not-found]  # in the interpreter; `signal` takes milliseconds to load its enums
import sys


def _leave(number: int, frame: object) -> None:
    """End by the signal's default; as process 1 of a container, which ignores that, exit with the same status."""
    _signal.signal(number, _signal.SIG_DFL)
    _signal.raise_signal(number)
    import os

    os._exit(128 + number)


def _catch(number: int) -> None:
    """Leave on a signal, unless it is ignored (`nohup`, `&` in a script) or another handler is set."""
    if _signal.getsignal(number) in (_signal.default_int_handler, _signal.SIG_DFL):
        _signal.signal(number, _leave)


if __name__ == "__main__" or "".join(sys.argv[:1]).endswith(("kbroker", "kbroker.exe", "-m")):
    _catch(_signal.SIGINT)  # now: a program that imports this has steps left before it calls main


def main() -> None:
    """Run the command line."""
    _catch(_signal.SIGINT)
    _catch(_signal.SIGTERM)
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
