"""A member as a process of its own: `python -m penstock.worker.supervision.member FD`, started by the supervisor."""

import faulthandler
import socket
import sys

from aiokafka.errors import KafkaError

from penstock.engine.errors import EngineError, UnsupportedDevice
from penstock.producer.tokenization import TokenizerError
from penstock.worker.process import serve
from penstock.worker.settings import WorkerSettings
from penstock.worker.supervision.control import EXIT_CANNOT_START, SupervisorLink


def main() -> int:
    """Serve until SIGTERM or the supervisor's end. Returns the exit code."""
    faulthandler.enable()  # SIGABRT from the supervisor, for a member that hangs, prints where each thread is
    link = SupervisorLink(socket.socket(fileno=int(sys.argv[1])))
    settings = WorkerSettings(**link.settings)
    try:
        return serve(settings, link)
    except (EngineError, TokenizerError, KafkaError) as error:
        if link.phase == "joined":
            raise
        link.report(failure=str(error) or repr(error), failure_is_of_device=isinstance(error, UnsupportedDevice))
        return EXIT_CANNOT_START


if __name__ == "__main__":
    sys.exit(main())
