"""The mark of a clean shutdown in a log folder. Source: ``CleanShutdownFileHandler``."""

from __future__ import annotations

from pathlib import Path

from kbroker.log.checkpoints import CorruptFileError, read_text, sync_folder, write_atomically

FILE_NAME = ".kafka_cleanshutdown"


def write_mark(folder: Path, broker_epoch: int = -1) -> None:
    """Mark all data of the folder as on disk, the last step of a clean stop. Raises: OSError."""
    import json  # not otherwise needed at start

    write_atomically(folder / FILE_NAME, json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode())


def take_mark(folder: Path) -> int | None:
    """Read and delete the mark; return the broker's epoch at the clean stop, -1 if the mark has none.

    It is deleted durably at once, so that a crash while loading counts as unclean.
    Returns: None after an unclean stop, or for an unreadable mark. Raises: OSError.
    """
    path = folder / FILE_NAME
    found = None
    try:
        text = read_text(path)
        if text is None:
            return None
        import json

        content = json.loads(text)
        if isinstance(content, dict) and content.get("version") == 0:
            epoch = content.get("brokerEpoch")
            found = epoch if isinstance(epoch, int) else -1
    except (CorruptFileError, ValueError):
        pass
    path.unlink()
    sync_folder(folder)
    return found
