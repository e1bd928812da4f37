"""The models and generators that the parts of the probe of generation share, and the sizes of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch

from penstock.engine.generation.generator import Generator
from penstock.engine.generation.limits import GeneratorLimits
from penstock.engine.gpu.generation.seq2seq import GpuSeq2Seq
from penstock.ops.bench.cellular.generation.generation_load import Load, uniform_work
from penstock.ops.bench.cellular.generation.generation_models import MARIAN, TINY, Shape, options_of, random_model
from penstock.ops.bench.cellular.generation.generation_phases import Phases

SEED = 2026
BEAMS = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a run."""

    shape: Shape
    requests: Mapping[int, int]  # by beams: that run at a time
    quanta: tuple[int, ...]
    batches: Mapping[int, tuple[int, ...]]  # by beams: of transformers
    seconds: float  # of each measurement
    work: int  # different requests


ON_GPU = Sizes(MARIAN, {1: 512, BEAMS: 512}, (4, 8), {1: (128, 256, 512), BEAMS: (32, 64, 128)}, 2.0, 8192)
ON_CPU = Sizes(TINY, {1: 8, BEAMS: 4}, (2,), {1: (4,), BEAMS: (2,)}, 0.2, 64)


@dataclass
class Bed:
    """Models and generators that the parts share."""

    device: torch.device
    sizes: Sizes
    results: dict[str, Any] = field(default_factory=dict)  # of the parts so far: each `error` and `result`

    def __post_init__(self) -> None:
        shape = self.sizes.shape
        self.model = cache(lambda: random_model(shape, SEED))
        self.work = cache(lambda: uniform_work(self.sizes.work, shape.vocabulary, shape.longest, SEED))
        self.generator = cache(self._generator)

    @property
    def dtype(self) -> torch.dtype:
        """float32 where the device has no kernels."""
        return torch.float16 if self.device.type == "cuda" else torch.float32

    def idle(self, num_beams: int, *, works_ahead: bool = False) -> tuple[Generator, GpuSeq2Seq]:
        """The generator of this number of beams, without requests of a part that failed."""
        generator, device, _ = self.generator(num_beams)
        for id in (*generator.waiting, *generator.active):
            generator.cancel(id)
        device.search.works_ahead = works_ahead
        return generator, device

    def load(self, num_beams: int, quantum: int, joins_late: bool, works_ahead: bool = True) -> Load:
        """A load on the generator of this number of beams."""
        self.idle(num_beams, works_ahead=works_ahead)
        generator, _, phases = self.generator(num_beams)
        return Load(
            generator,
            self.work(),
            partial(options_of, num_beams=num_beams),
            phases,
            max_requests=self.sizes.requests[num_beams],
            quantum=quantum,
            joins_late=joins_late,
        )

    def _generator(self, num_beams: int) -> tuple[Generator, GpuSeq2Seq, Phases]:
        """Its graphs are captured."""
        sizes, page_size = self.sizes, 16
        count, pages = sizes.requests[num_beams], -(-sizes.shape.longest // page_size)
        limits = GeneratorLimits(
            num_pages=count * (1 + num_beams) * pages,
            page_size=page_size,
            max_rows=count * num_beams,
            max_waiting=count,
            max_encode_tokens=65_536,
            max_source_tokens=sizes.shape.longest,
            max_new_tokens=sizes.shape.longest,
        )
        weights = self.model()[0].weights
        device = GpuSeq2Seq(weights, limits, device=self.device, dtype=self.dtype)
        device.prepare(options_of(sizes.shape.longest, num_beams), (1, *sizes.quanta), count)
        phases = Phases(device)
        return Generator(weights, limits, device=device), device, phases
