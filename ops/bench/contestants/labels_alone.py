"""Labels of requests by the engine without Kafka: pairs as a worker makes them, in full batches on its lanes."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch
import uvloop

from penstock.engine import PackedBatch, TaskOptions
from penstock.engine.types import ENTAIL, BatchOutput, Float32Array, entailment_of
from penstock.ops.bench.contestants.engine_alone import EngineAlone, full_groups
from penstock.producer.tokenization import Encoded
from penstock.producer.wire.messages import Options, Request
from penstock.worker.requests.label_pairs import label_pairs, texts_of

_RECORD_PAIRS = 1024  # that a worker admits of one record
_OPTIONS = TaskOptions(ENTAIL)


class LabelsAlone(EngineAlone):
    """A model of natural language inference. All pairs of a text follow one another in a batch."""

    def classify(self, texts: Sequence[str], labels: Sequence[str]) -> tuple[Float32Array, float]:
        """Scores [texts, labels], of which one label holds, and seconds from the first text to the last score."""
        return uvloop.run(self._classify(texts, labels))

    async def _classify(self, texts: Sequence[str], labels: Sequence[str]) -> tuple[Float32Array, float]:
        begun, futures = time.perf_counter(), list[asyncio.Future[BatchOutput]]()
        num_texts = max(1, _RECORD_PAIRS // len(labels))
        async with self:
            for start in range(0, len(texts), num_texts):
                record = Request(
                    self.engine.info.name,
                    "classify",
                    text=tuple(texts[start : start + num_texts]),
                    options=Options(labels=tuple(labels)),
                )
                encoded = await self._tokenizer.encode_async(texts_of(record), truncate=False)
                futures += [self._lanes.submit(batch) for batch in self._batches(record, encoded)]
            logits = np.stack([row for future in futures for row in (await future).rows])
        entailed = logits.reshape(len(texts), len(labels), -1)[..., entailment_of(self.engine.info.labels)]
        scores: Float32Array = torch.from_numpy(entailed).softmax(dim=-1).numpy()
        return scores, time.perf_counter() - begun

    def _batches(self, record: Request, encoded: Sequence[Encoded]) -> Iterator[PackedBatch]:
        ids, lengths, types = label_pairs(record, encoded, self._tokenizer, self.engine.info.max_tokens)
        bounds = np.cumsum(lengths)[:-1]
        own_types = iter([None] * len(lengths) if types is None else np.split(types, bounds))
        for group in full_groups(
            np.split(ids, bounds), self.settings.max_batch_tokens, self.settings.max_batch_sequences
        ):
            yield PackedBatch.of(group, [_OPTIONS] * len(group), list(islice(own_types, len(group))))
