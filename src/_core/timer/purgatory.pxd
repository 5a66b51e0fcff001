"""The purgatory by its public name: the C functions of ``purgatory_core``; Python's view is in the module itself."""
from kbroker._core.timer.purgatory_core cimport (
    Operation, OperationTable, Purgatory, operation_force_complete, operation_init, operation_is_completed,
    operation_release, purgatory_advance, purgatory_cancel_for_key, purgatory_check_and_complete, purgatory_close,
    purgatory_delayed, purgatory_new, purgatory_release, purgatory_retain, purgatory_try_complete_else_watch,
    purgatory_watched,
)
from kbroker._core.timer.watch_lists cimport Key
