"""Processes that never outlive this one, even if it is killed with SIGKILL."""

import subprocess


def kill_with_this_process(pid: int) -> subprocess.Popen[bytes]:
    """Start a guard, which kills a process when this one ends.

    The caller kills and reaps the guard before it reaps the process: another process may get the same pid.
    """
    # `read` ends when the kernel closes the pipe's only writing end with this process. PR_SET_PDEATHSIG would
    # fire too early: when the thread that started the process ends.
    return subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _; kill -9 "$0"', str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
