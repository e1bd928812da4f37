"""The GEMM floor: the four linear layers of each encoder layer on the same tokens, and nothing else.

A forward of this model cannot be faster than its matrix multiplications. The floor is the fastest of several ways to do
them in the same run: plain torch or oneDNN with reordered weights; one single-threaded lane a core or all cores on one
multiplication; the batches of the engine or chunks of 4,096 tokens.
"""

import itertools
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from penstock.engine.cpu.linear import Linear, OneDnnLinear, PlainLinear
from penstock.engine.model.weights import Dense

LARGE_CHUNK_TOKENS = 4096

Kernel = Literal["plain", "onednn"]
Spread = Literal["lanes", "threads"]  # one single-threaded lane a core, or one chunk on all cores
Chunks = Literal["batches", "large"]  # the engine's batches, or LARGE_CHUNK_TOKENS


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to multiply."""

    kernel: Kernel
    spread: Spread
    chunks: Chunks

    def __str__(self) -> str:
        return f"{self.kernel}, {self.spread}, {self.chunks}"


_KERNELS: tuple[Kernel, ...] = ("plain", "onednn")
_SPREADS: tuple[Spread, ...] = ("lanes", "threads")
_CHUNKS: tuple[Chunks, ...] = ("batches", "large")
VARIANTS = tuple(Variant(*choice) for choice in itertools.product(_KERNELS, _SPREADS, _CHUNKS))


class GemmFloor:
    """Random weights in the shapes of a checkpoint's config.json."""

    def __init__(self, model: Path, dtype: torch.dtype, cores: int) -> None:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self._widths = [(hidden, 3 * hidden), (hidden, hidden), (hidden, inner), (inner, hidden)]
        self._dtype = dtype
        self._cores = cores
        generator = torch.Generator().manual_seed(0)
        denses = [
            Dense(torch.randn(out, inp, generator=generator) * 0.02, torch.zeros(out), "identity")
            for _ in range(config["num_hidden_layers"])
            for inp, out in self._widths
        ]
        kinds: dict[str, Callable[[Dense, torch.dtype], Linear]] = {"plain": PlainLinear, "onednn": OneDnnLinear}
        self._linears: dict[str, list[Linear]] = {
            name: [make(dense, dtype) for dense in denses] for name, make in kinds.items()
        }
        self._inputs = {
            width: (torch.randn(LARGE_CHUNK_TOKENS, width, generator=generator)).to(dtype) for width in (hidden, inner)
        }

    def seconds(self, variant: Variant, batch_tokens: Sequence[int]) -> float:
        """Seconds for all tokens of `batch_tokens`."""
        linears = self._linears[variant.kernel]
        chunks = list(batch_tokens) if variant.chunks == "batches" else large_chunks(sum(batch_tokens), self._cores)
        if variant.spread == "threads":
            torch.set_num_threads(self._cores)
            started = time.perf_counter()
            for tokens in chunks:
                self._multiply(linears, tokens)
            return time.perf_counter() - started
        with ThreadPoolExecutor(self._cores, initializer=torch.set_num_threads, initargs=(1,)) as lanes:
            started = time.perf_counter()
            list(lanes.map(lambda tokens: self._multiply(linears, tokens), chunks))
            return time.perf_counter() - started

    @torch.inference_mode()
    def _multiply(self, linears: Sequence[Linear], tokens: int) -> None:
        inputs: list[Tensor] = [self._inputs[width][:tokens] for width, _ in self._widths]
        for index, linear in enumerate(linears):
            linear(inputs[index % len(inputs)])


def large_chunks(tokens: int, cores: int) -> list[int]:
    """Even chunks of at most LARGE_CHUNK_TOKENS, the same number for each core."""
    count = -(-tokens // (LARGE_CHUNK_TOKENS * cores)) * cores
    return [tokens // count + (index < tokens % count) for index in range(count)]
