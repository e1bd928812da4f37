"""BERT-base with random weights, as transformers has it and as the engine runs it, and the floor; random requests.

Models are made on first use.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from penstock.engine import PackedBatch, TaskOptions
from penstock.engine.gpu import GpuEncoder
from penstock.engine.gpu.ops import GpuDense, prepare_for_gpu
from penstock.engine.model.weights import Encoder, EncoderWeights
from penstock.engine.packed_model import weights_of
from penstock.engine.types import Int32Array
from penstock.ops.bench.common.draws import Lengths
from penstock.ops.bench.gpu.device_bench import DeviceBench
from penstock.ops.bench.gpu.floor import GemmFloor, LayerSizes
from penstock.ops.bench.gpu.timing import WARM_UPS, Recorder, Work, interleaved_ms

DTYPE = torch.float16
MAX_FLOOR_TOKENS = 32_768
_FIRST_ID = 1000  # below it are BERT's special and unused tokens
_OPTIONS = TaskOptions("embed")
INITIALIZER_RANGE = 0.04  # twice the usual, at which attention is nearly uniform
_MAX_POSITIONS = 1024
_ORDINARY = torch.inference_mode(False)  # parts run in inference mode, whose tensors cannot be moved in place


class Bench(DeviceBench):
    """The model and its contestants' forms of one process. It has no pooler: hidden states are all that is measured."""

    def mode(self) -> AbstractContextManager[object]:
        """All parts are inference."""
        return torch.inference_mode()

    @cached_property
    def recorder(self) -> Recorder:
        return Recorder()

    @cached_property
    @_ORDINARY
    def reference(self) -> nn.Module:
        """transformers' 12 layers of 768, 12 heads, erf GELU: float32, on the CPU."""
        config = transformers.BertConfig(max_position_embeddings=_MAX_POSITIONS, initializer_range=INITIALIZER_RANGE)
        make: Any = transformers.BertModel
        torch.manual_seed(self.seed)
        return make(config, add_pooling_layer=False).eval().requires_grad_(False)  # type: ignore[no-any-return]

    @cached_property
    @_ORDINARY
    def weights(self) -> EncoderWeights:
        return weights_of(self.reference)

    @cached_property
    def ours(self) -> GpuEncoder:
        return GpuEncoder(self.weights, DTYPE, graphs=True)

    @cached_property
    def prepared(self) -> Encoder[GpuDense]:
        """The weights on the device, as the engine's own kernels and the plain torch forward take them."""
        return prepare_for_gpu(self.weights, DTYPE, torch.device("cuda"))

    @cached_property
    @_ORDINARY
    def sdpa(self) -> nn.Module:
        """transformers' model on the device."""
        model: Any = copy.deepcopy(self.reference)
        model.set_attn_implementation("sdpa")
        module: nn.Module = model.to("cuda", DTYPE)
        return module

    @cached_property
    def floor(self) -> GemmFloor:
        config: Any = self.reference.config
        hidden, inner = config.hidden_size, config.intermediate_size
        sizes = LayerSizes(hidden, 3 * hidden, hidden, inner, inner)
        return GemmFloor(sizes, config.num_hidden_layers, MAX_FLOOR_TOKENS, self.recorder)

    def compare(self, where: str, contestants: Mapping[str, Callable[[], Work]]) -> dict[str, float]:
        """Median milliseconds of each contestant, in turn. The values of `contestants` make the work that is timed."""
        ready: dict[str, Work] = {}
        for name, make in contestants.items():
            with self.guarded(name, where):
                work = make()
                for _ in range(WARM_UPS):
                    work()
                torch.cuda.synchronize()
                ready[name] = work
        return interleaved_ms(ready)


def random_requests(lengths: Lengths, vocab_size: int, seed: int) -> list[Int32Array]:
    """Token ids of one request for each length."""
    ids = np.random.default_rng(seed).integers(_FIRST_ID, vocab_size, int(lengths.sum()), dtype=np.int32)
    return np.split(ids, np.cumsum(lengths)[:-1])


def pack(requests: Sequence[Int32Array]) -> PackedBatch:
    """A packed batch of requests."""
    return PackedBatch.of(requests, [_OPTIONS] * len(requests))
