"""A member as a process: `python -m penstock.worker.supervision.member FD CPUS`, started by the supervisor."""

import faulthandler
import os
import socket
import sys
from types import TracebackType

import structlog

from penstock.worker.control_socket import EXIT_CANNOT_START, SupervisorLink

log = structlog.get_logger("penstock.member")


def main() -> int:
    """Serve until SIGTERM or the supervisor's end. Returns the exit code."""
    descriptor, cpus = sys.argv[1:]
    os.sched_setaffinity(0, map(int, cpus.split(",")))
    faulthandler.enable()  # SIGABRT from the supervisor, for a member that hangs, prints where each thread is
    return _serve(SupervisorLink(socket.socket(fileno=int(descriptor))))


def _serve(link: SupervisorLink) -> int:
    # Libraries count the cores when they are imported, so this comes after the choice of cores.
    from aiokafka.errors import KafkaError

    from penstock.engine.errors import EngineError, UnsupportedDevice
    from penstock.worker.process import run_worker
    from penstock.worker.settings import WorkerSettings

    settings = WorkerSettings.handed_over(**link.settings)
    sys.excepthook = _log_uncaught
    try:
        return run_worker(settings, link)
    except (EngineError, KafkaError) as error:
        if link.phase == "joined":
            raise
        link.report(failure=str(error) or repr(error), failure_is_of_device=isinstance(error, UnsupportedDevice))
        return EXIT_CANNOT_START


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Log an error that ends the member as one event, which says which member it was."""
    log.critical("member_failed", error=repr(error), exc_info=(kind, error, trace))


if __name__ == "__main__":
    sys.exit(main())
