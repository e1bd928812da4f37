"""The GEMM floor: the four linear layers of each encoder layer in one CUDA graph, and nothing else."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.ops.bench.gpu.timing import Recorder, interleaved_ms

_TRIALS = 5


class LayerSizes(NamedTuple):
    """Columns of what a layer's four products read and write."""

    hidden: int
    qkv: int
    context: int
    up: int  # twice `down` where there is a gate
    down: int


class GemmFloor:
    """Random weights of an encoder's shapes, every layer with its own, as a forward pass meets them."""

    def __init__(self, sizes: LayerSizes, layers: int, max_tokens: int, recorder: Recorder) -> None:
        self._recorder = recorder
        hidden, qkv, context, up, down = sizes
        shapes = ((qkv, hidden), (hidden, context), (up, hidden), (hidden, down))
        generator = torch.Generator("cuda").manual_seed(0)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, device="cuda", generator=generator).half()

        stored = [[normal(*shape) * 0.02 for shape in shapes] for _ in range(layers)]
        # Two layouts in memory, [out, in] and [in, out]; cuBLAS prefers one or the other by the size.
        self._weights = {
            "out, in": [[weight.t() for weight in layer] for layer in stored],
            "in, out": [[weight.t().contiguous() for weight in layer] for layer in stored],
        }
        self._x, self._context = normal(max_tokens, hidden), normal(max_tokens, context)
        self._qkv, self._attended = normal(max_tokens, qkv), normal(max_tokens, hidden)
        self._inner = normal(max_tokens, up)
        self._gated = self._inner if up == down else normal(max_tokens, down)

    def graph(self, tokens: int) -> Callable[[], object]:
        """A replay of the products for a number of tokens, in the faster of the two layouts."""
        replays = {
            name: self._recorder.capture(partial(self._products, weights, tokens))
            for name, weights in self._weights.items()
        }
        milliseconds = interleaved_ms(replays, _TRIALS)
        return replays[min(milliseconds, key=milliseconds.__getitem__)]

    def _products(self, weights: list[list[Tensor]], tokens: int) -> None:
        x, context, attended = self._x[:tokens], self._context[:tokens], self._attended[:tokens]
        qkv, inner, gated = self._qkv[:tokens], self._inner[:tokens], self._gated[:tokens]
        for to_qkv, to_output, up, down in weights:
            torch.mm(x, to_qkv, out=qkv)
            torch.mm(context, to_output, out=attended)
            torch.mm(attended, up, out=inner)
            torch.mm(gated, down, out=x)
