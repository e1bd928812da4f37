"""`penstock worker`: this machine's members of a model's consumer group."""

from penstock.ops.cli.setting_options import takes
from penstock.ops.cli.terminal import exit_code_of
from penstock.worker.settings import WorkerSettings


@takes(WorkerSettings)
def worker(settings: WorkerSettings) -> int:
    """Answer the requests of a model's topic until Ctrl-C or SIGTERM, which finish the requests in flight first.

    Start one worker per machine. It runs one process on a CPU and several on each GPU; Kafka distributes the topic's
    partitions over all of them. With several, SIGHUP replaces them one at a time, SIGTTIN and SIGTTOU run one more and
    one fewer. One process drains and ends on SIGHUP, and ignores the other two.

    $ penstock worker --model sentence-transformers/all-MiniLM-L6-v2
    """
    from penstock.worker import run_members
    from penstock.worker.control_socket import EXIT_CANNOT_START

    return exit_code_of(lambda: run_members(settings), failed=EXIT_CANNOT_START)
