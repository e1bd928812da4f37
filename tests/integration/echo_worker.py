"""`penstock worker --model null` with an engine whose results identify their sequences, so that a mix-up shows.

Run as a program by the tests; settings come from the environment.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from aiokafka.errors import KafkaError

from penstock.engine import NullEngine
from penstock.engine.types import BatchOutput, Float32Array, Int32Array, PackedBatch
from penstock.engine.vector_rows import join_sparse, join_vectors
from penstock.producer.transport import outbox
from penstock.producer.transport.outbox import Outbox, OutRecord
from penstock.scheduler import LearnedCost
from penstock.worker import WorkerSettings, pipeline, process
from penstock.worker.batching import watchdog
from penstock.worker.kafka import reply_destinations
from penstock.worker.resolved_settings import ResolvedSettings

POISON = 30_000  # the token on which the engine fails
KILLER = 30_001  # the token on which the process dies
UNKNOWN = 30_002  # the token without a weight in sparse vectors
BATCH_S = float(os.environ.get("ECHO_BATCH_S", "0"))  # how long each batch takes
GATE = os.environ.get("ECHO_GATE")  # a file: batches of more than one token end when it is there
HANGS = bool(os.environ.get("ECHO_HANGS"))  # whether batches of more than one token never end
HANG_S = os.environ.get("ECHO_HANG_S")  # after how long the worker notices it
METADATA_MAX_AGE_MS = os.environ.get("ECHO_METADATA_MAX_AGE_MS")  # of the outbox
STALL_S = os.environ.get("ECHO_STALL_S")  # after how long a destination is stalled
REVISION = os.environ.get("ECHO_REVISION")  # of the model; its length is added to each number of a vector
RELEASE = Path(os.environ.get("ECHO_RELEASE", ""))


class EchoEngine(NullEngine):
    """The vector of a sequence: its length, its first and last id, its sum of ids.

    The vector of a token: its id and its place. The weight of an id in a sparse vector: how often it is there.
    """

    def __init__(self, name: str) -> None:
        super().__init__(4, name=name)
        if REVISION is not None:
            self._info = replace(self._info, revision=REVISION)
        self.serves = False

    def run(self, batch: PackedBatch) -> BatchOutput:
        if KILLER in batch.token_ids:
            os.kill(os.getpid(), signal.SIGSEGV)
        if HANGS and len(batch.token_ids) > 1 and self.serves:
            threading.Event().wait()
        while GATE and len(batch.token_ids) > 1 and self.serves and not Path(GATE).exists():
            time.sleep(0.02)
        if BATCH_S and len(batch.token_ids) > 1:
            time.sleep(BATCH_S)  # stands for the work of a model
        if POISON in batch.token_ids:
            raise ValueError("cannot compute this")
        sequences = np.split(batch.token_ids, batch.cu_seqlens[1:-1])
        rows = [_row(one.task, ids) for one, ids in zip(batch.options, sequences, strict=True)]
        return BatchOutput([row + len(REVISION or "") for row in rows], BATCH_S)


def _row(task: str, ids: Int32Array) -> Float32Array:
    vector = np.array([len(ids), ids[0], ids[-1], ids.sum()], np.float32)
    if task == "embed":
        return vector
    known, counts = np.unique(ids[ids != UNKNOWN], return_counts=True)
    sparse = join_sparse(known, counts.astype(np.float32))
    tokens = np.stack((ids, np.arange(len(ids))), axis=1).astype(np.float32)
    return {"embed_sparse": sparse, "embed_tokens": tokens, "embed_all": join_vectors(vector, tokens, sparse)}[task]


class LateOutbox(Outbox):
    """Delays acknowledgements from topics called "….late" until the file RELEASE exists. Sends at once."""

    def put(self, topic: str, partition: int | None, records: Sequence[OutRecord]) -> None:
        done = records[0].done  # of replies that are put together

        def when_released(sent: Sequence[OutRecord], error: KafkaError | None) -> None:
            if RELEASE.exists():
                done(sent, error)
            else:
                asyncio.get_running_loop().call_later(0.02, when_released, sent, error)

        if topic.endswith(".late"):
            records = [replace(record, done=when_released) for record in records]
        super().put(topic, partition, records)


if __name__ == "__main__":
    pipeline.Outbox = LateOutbox  # type: ignore[attr-defined]  # the same door
    cost_of = process._cost

    def measure_then_serve(engine: EchoEngine, settings: ResolvedSettings, device_share: float) -> LearnedCost:
        cost = cost_of(engine, settings, device_share)
        engine.serves = True
        return cost

    watchdog.HANG_S = watchdog.HANG_S if HANG_S is None else float(HANG_S)
    if METADATA_MAX_AGE_MS is not None:
        outbox.METADATA_MAX_AGE_MS = int(METADATA_MAX_AGE_MS)  # type: ignore[attr-defined]  # imported there
    reply_destinations.STALL_S = reply_destinations.STALL_S if STALL_S is None else float(STALL_S)
    process._cost = measure_then_serve  # type: ignore[assignment]  # called with an EchoEngine only
    process.NullEngine = EchoEngine  # type: ignore[attr-defined,assignment]  # the whole worker, but for its arithmetic
    sys.exit(process.run_worker(WorkerSettings(model="null")))  # type: ignore[call-arg]  # the others have defaults
