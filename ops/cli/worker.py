"""`penstock worker`: one member of a model's consumer group."""

from penstock.ops.cli.options import takes
from penstock.worker.settings import WorkerSettings


@takes(WorkerSettings)
def worker(settings: WorkerSettings) -> int:
    """Answer the requests of a model's topic until stopped (Ctrl-C, SIGTERM: finishes what is in flight first).

    Start as many as you have machines: Kafka shares the topic's partitions among them.

    $ penstock worker --model sentence-transformers/all-MiniLM-L6-v2
    """
    from penstock.worker import serve

    return serve(settings)
