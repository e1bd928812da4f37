"""Buffers of a batch cost page faults once, not for each batch."""

import platform
import subprocess
import sys

import pytest

BATCHES, BATCH_BYTES = 50, 1_000_000
COPIES = f"""
import resource, sys
from penstock.worker.process import keep_freed_memory

def copy():
    parts = b"x" * {BATCH_BYTES}
    for _ in range(6):
        parts = b"head" + parts

if sys.argv[1] == "kept":
    keep_freed_memory()
copy()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({BATCHES}):
    copy()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def num_faults(heap: str) -> int:
    return int(subprocess.run([sys.executable, "-c", COPIES, heap], capture_output=True, check=True).stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the option is glibc's")
def test_copies_of_a_batch_after_the_first_take_no_memory_from_the_kernel() -> None:
    pages = BATCHES * BATCH_BYTES / 4096
    assert num_faults("as it is") > pages  # why there is something to do
    assert num_faults("kept") < pages / 100
