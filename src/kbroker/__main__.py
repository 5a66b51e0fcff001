"""The `kbroker` program, also `python -m kbroker`: no signal gets a traceback out of it."""

import signal

_LEAVE_ON = (signal.SIGINT, signal.SIGTERM)


def _leave(number: int, frame: object) -> None:
    """End as the signal's default does; for process 1 of a container, which that does not end, with the same status."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    import os

    os._exit(128 + number)


def main() -> None:
    """Run the command line. A signal that is ignored (`nohup`, `&` in a script) stays ignored."""
    for number in _LEAVE_ON:
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(number, _leave)
    from kbroker.cli import cli  # takes longer than all before

    cli(prog_name="kbroker")


if __name__ == "__main__":
    main()
