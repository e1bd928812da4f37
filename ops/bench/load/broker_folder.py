"""Where a measured broker keeps its records."""

import os
from pathlib import Path

from penstock.engine.host_memory import free_host_bytes

_MEMORY = Path("/dev/shm")  # a file system in memory; the broker makes a folder of its own in it
# 60 partitions of replies take 22.5 GiB at most: what is retained of each, and the segment that is written. Requests
# are a tenth of replies. The rest is for what comes between two checks of the retention.
_ROOM_BYTES = 32 << 30


def broker_folder() -> Path | None:
    """The parent of its folder: in memory if there is room, so that no disk is the limit; else None, the system's.

    With records on a disk, a broker acknowledged up to 115 ms late, a second after a segment was full.
    """
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        return None
    found = os.statvfs(_MEMORY)
    room_bytes = min(found.f_bavail * found.f_frsize, free_host_bytes() or 0)  # the file system reserves no memory
    return _MEMORY if room_bytes >= _ROOM_BYTES else None
