"""The model, generators and runners that the parts of the suite of generation share, and the sizes of a run.

The model has Marian's shape and random weights.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers

from penstock.engine.generation.generator import Generator
from penstock.engine.generation.limits import GeneratorLimits
from penstock.engine.generation.loading import Seq2SeqCheckpoint, load_seq2seq
from penstock.engine.generation_options import GenerationOptions
from penstock.engine.gpu.generation.seq2seq import GpuSeq2Seq
from penstock.ops.bench.cellular.load import OfferedRunner
from penstock.ops.bench.gpu.device_bench import DeviceBench
from penstock.worker.batching.job_runner import JobEvents
from penstock.worker.garbage_collection import calm_garbage_collection
from penstock.worker.stepping.contract import StepJob
from penstock.worker.stepping.generation_runner import GenerationRunner
from penstock.worker.stepping.generation_work import GenerationWork

MIN_LENGTH, PAGE_TOKENS = 5, 16
BEAMS = {"greedy": 1, "beams_4": 4}
_HALF_BYTES = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of an encoder-decoder transformer."""

    layers: int  # of each stack
    hidden: int
    inner: int
    heads: int
    vocabulary: int
    longest: int  # of sources and of outputs


MARIAN = Shape(6, 512, 2048, 8, 58_101, 100)
TINY = Shape(2, 32, 64, 2, 120, 12)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a run."""

    shape: Shape
    requests: Mapping[str, int]  # by search: that run at a time
    quanta: tuple[int, ...]
    batches: Mapping[str, tuple[int, ...]]  # by search: of transformers
    seconds: float  # of each load
    works: int  # different requests


ON_GPU = Sizes(
    MARIAN,
    {"greedy": 512, "beams_4": 512},
    (4, 8),
    {"greedy": (128, 256, 512), "beams_4": (32, 64, 128)},
    2.0,
    8192,
)
ON_CPU = Sizes(TINY, {"greedy": 8, "beams_4": 4}, (2,), {"greedy": (4,), "beams_4": (2,)}, 0.05, 64)


class GenerationBench(DeviceBench):
    """Each search has a generator of its own, whose graphs are captured."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.sizes = ON_GPU if self.device.type == "cuda" else ON_CPU
        if self.device.type == "cpu":
            torch.set_num_threads(1)  # operations are too small for more
        self.model = cache(lambda: random_model(self.sizes.shape, self.seed))
        self.works = cache(self._works)
        self._made = cache(self._make)
        self.saturated_per_s: dict[str, float] = {}  # by search, with late joins: of the parts so far
        calm_garbage_collection()

    @property
    def dtype(self) -> torch.dtype:
        """float32 where the device has no kernels."""
        return torch.float16 if self.device.type == "cuda" else torch.float32

    def idle(self, search: str) -> tuple[Generator, GpuSeq2Seq]:
        """The generator of this search, without requests of a part that failed."""
        generator, device, _ = self._made(search)
        for id in (*generator.waiting, *generator.active):
            generator.cancel(id)
        return generator, device

    def runner(self, search: str, quantum: int, *, joins_late: bool) -> OfferedRunner:
        """As a worker has it. Without late joins, a batch begins when the one before has ended."""
        generator, _ = self.idle(search)
        probe = GenerationWork(np.zeros(1, np.int32), options_of(1, 1), 0)
        runner = GenerationRunner(generator, self._made(search)[2], probe, quantum)
        return runner if joins_late else StaticBatches(runner, self.sizes.requests[search])

    def _works(self, search: str) -> list[GenerationWork]:
        """Sources and outputs of lengths that are uniform in [5, longest], drawn apart."""
        shape, rng = self.sizes.shape, np.random.default_rng(self.seed)
        lengths = rng.integers(min(MIN_LENGTH, shape.longest), shape.longest + 1, (self.sizes.works, 2)).tolist()
        sources = [rng.integers(10, shape.vocabulary, length, dtype=np.int32) for length, _ in lengths]
        options = {new: options_of(new, BEAMS[search]) for _, new in lengths}
        return [GenerationWork(source, options[new], 0) for source, (_, new) in zip(sources, lengths, strict=True)]

    def _make(self, search: str) -> tuple[Generator, GpuSeq2Seq, GeneratorLimits]:
        shape, count, beams = self.sizes.shape, self.sizes.requests[search], BEAMS[search]
        limits = GeneratorLimits(
            num_pages=count * (1 + beams) * -(-shape.longest // PAGE_TOKENS),
            page_size=PAGE_TOKENS,
            max_rows=count * beams,
            max_waiting=count,
            max_encode_tokens=65_536,
            max_source_tokens=shape.longest,
            max_new_tokens=shape.longest,
        )
        weights = self.model()[0].weights
        device = GpuSeq2Seq(weights, limits, device=self.device, dtype=self.dtype)
        quanta = [1 << power for power in range(max(self.sizes.quanta).bit_length())]  # as of a worker
        device.prepare(options_of(shape.longest, beams), quanta, count)
        return Generator(weights, limits, device=device), device, limits


class StaticBatches:
    """Gives a runner as many requests as may run at a time, and no other until all of them have ended."""

    def __init__(self, runner: OfferedRunner, max_requests: int) -> None:
        self._runner, self._max_requests = runner, max_requests
        self._queue: deque[StepJob] = deque()

    @property
    def is_idle(self) -> bool:
        """See `StepRunner.is_idle`."""
        return not self._queue and self._runner.is_idle

    def add(self, jobs: Sequence[StepJob]) -> None:
        """See `StepRunner.add`."""
        self._queue.extend(jobs)

    def advance(self, now: float) -> JobEvents:
        """See `StepRunner.advance`."""
        if self._runner.is_idle:
            self._runner.add([self._queue.popleft() for _ in range(min(self._max_requests, len(self._queue)))])
        return self._runner.advance(now)


def random_model(shape: Shape, seed: int) -> tuple[Seq2SeqCheckpoint, Any]:
    """Our checkpoint and transformers' model, float32 on the CPU. No token ends a sequence."""
    torch.manual_seed(seed)
    config = transformers.MarianConfig(
        vocab_size=shape.vocabulary,
        d_model=shape.hidden,
        encoder_layers=shape.layers,
        decoder_layers=shape.layers,
        encoder_attention_heads=shape.heads,
        decoder_attention_heads=shape.heads,
        encoder_ffn_dim=shape.inner,
        decoder_ffn_dim=shape.inner,
        max_position_embeddings=512,
        scale_embedding=True,
        activation_function="swish",
        pad_token_id=1,
        eos_token_id=0,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    model: Any = transformers.MarianMTModel(config)
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.forced_eos_token_id = None
    with TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        return load_seq2seq(directory), model


def options_of(new_tokens: int, num_beams: int) -> GenerationOptions:
    """Options of a request that ends after that number of tokens."""
    return GenerationOptions(decoder_start_token_id=1, max_new_tokens=new_tokens, num_beams=num_beams)


def step_floor(shape: Shape, past: Sequence[int], sources: Sequence[int], beams: int) -> tuple[float, float]:
    """Bytes and FLOPs of a step in half precision: every weight once, every key and value once, and every product.

    past: positions of each sequence, whose beams share none; sources: tokens of each sequence's source.
    """
    hidden, rows = shape.hidden, beams * len(past)
    weights = shape.layers * (6 * hidden * hidden + 2 * hidden * shape.inner)
    weights += shape.vocabulary * hidden  # without the products of cross keys and values, which the encoder has done
    keys = beams * sum(past) + sum(sources)
    num_bytes = _HALF_BYTES * (weights + 2 * shape.layers * hidden * keys)
    return num_bytes, 2.0 * rows * weights + 4.0 * shape.layers * hidden * beams * (sum(past) + sum(sources))
