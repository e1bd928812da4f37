"""Where a measured broker keeps its records."""

import os
from pathlib import Path

_MEMORY = Path("/dev/shm")  # a file system in memory; the broker makes a folder of its own in it
_ROOM_BYTES = 8 << 30  # of records, at most, within the broker's limits of retention


def broker_folder() -> Path | None:
    """The parent of its folder: in memory if there is room, so that no disk is the limit; else None, the system's.

    On a disk, a full segment is flushed while others are written. All partitions then waited for up to 70 ms at a time.
    """
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        return None
    found = os.statvfs(_MEMORY)
    return _MEMORY if found.f_bfree * found.f_frsize >= _ROOM_BYTES else None
