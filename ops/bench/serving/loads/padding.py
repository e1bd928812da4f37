"""Engines that pad their batches and compute the padding, as TurboTransformers' systems do."""

from dataclasses import replace

import numpy as np

from penstock.engine import Engine, ModelInfo, PackedBatch, PipelinedEngine
from penstock.engine.types import BatchOutput, Running


class Padding:
    """An engine for which every sequence is as long as its batch's longest.

    Attention is not masked: the time is that of a padded batch, and the rows mean nothing.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def info(self) -> ModelInfo:
        return replace(self._engine.info, padded=True)

    def run(self, batch: PackedBatch) -> BatchOutput:
        """See `Engine.run`."""
        return self._engine.run(padded(batch))


class PipelinedPadding(Padding):
    """The same for a pipelined engine."""

    def __init__(self, engine: PipelinedEngine) -> None:
        super().__init__(engine)
        self._pipelined = engine

    def start(self, batch: PackedBatch) -> Running:
        """See `PipelinedEngine.start`."""
        return self._pipelined.start(padded(batch))

    def idle(self) -> float | None:
        """See `PipelinedEngine.idle`."""
        return self._pipelined.idle()


def with_padding(engine: Engine) -> Engine:
    """Wrap an engine so that it pads its batches."""
    return PipelinedPadding(engine) if isinstance(engine, PipelinedEngine) else Padding(engine)


def padded(batch: PackedBatch) -> PackedBatch:
    """The batch with every sequence padded to the longest by token 0."""
    count, longest = len(batch.options), batch.max_seqlen
    lengths = np.diff(batch.cu_seqlens)
    ids = np.zeros((count, longest), np.int32)
    ids[np.arange(longest) < lengths[:, None]] = batch.token_ids
    cu_seqlens = np.arange(count + 1, dtype=np.int32) * np.int32(longest)
    return PackedBatch(ids.ravel(), cu_seqlens, longest, None, batch.options)
