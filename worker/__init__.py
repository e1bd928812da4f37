"""The worker: a member of the consumer group. The only room that commits offsets and handles signals."""

from penstock.worker.settings import WorkerSettings

__all__ = ["WorkerSettings", "serve"]


def serve(settings: WorkerSettings) -> int:
    """Run one worker; see `penstock.worker.process`. Imported on call, so that reading settings imports no torch."""
    from penstock.worker.process import serve as run

    return run(settings)
