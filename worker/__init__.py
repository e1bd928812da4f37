"""The worker: a member of the consumer group. The only room that commits offsets and handles signals."""

from penstock.worker.settings import WorkerSettings

__all__ = ["WorkerSettings", "run_members"]


def run_members(settings: WorkerSettings) -> int:
    """Run a worker, as one process or several; see `penstock.worker.command`. Imported on call: it imports torch."""
    from penstock.worker import command

    return command.run_members(settings)
