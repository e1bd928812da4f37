"""BERT-base with random weights, as transformers has it and as the engine runs it."""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from penstock.engine.gpu import GpuEncoder
from penstock.engine.gpu.ops import GpuDense, prepare_for_gpu
from penstock.engine.model.weights import Encoder, EncoderWeights
from penstock.engine.packed_model import weights_of
from penstock.engine.types import Int32Array
from penstock.ops.bench.gpu.request_batches import pad

DTYPE = torch.float16
# Twice the usual, at which attention is nearly uniform.
INITIALIZER_RANGE = 0.04
MAX_POSITIONS = 1024


@dataclass(frozen=True, slots=True)
class Model:
    """One random model, as itself and as the engine's weights."""

    reference: nn.Module  # of transformers, float32, on the CPU
    weights: EncoderWeights

    @property
    def vocab_size(self) -> int:
        return self.weights.vocab_size

    def sdpa(self) -> nn.Module:
        """A copy on the device, for transformers to run."""
        with _ordinary_tensors():
            model: Any = copy.deepcopy(self.reference)
            model.set_attn_implementation("sdpa")
            module: nn.Module = model.to("cuda", DTYPE)
        return module

    def prepared(self) -> Encoder[GpuDense]:
        """The weights on the device, as the engine's own kernels and the plain torch forward take them."""
        return prepare_for_gpu(self.weights, DTYPE, torch.device("cuda"))

    def encoder(self) -> GpuEncoder:
        return GpuEncoder(self.weights, DTYPE, graphs=True)


def bert_base(seed: int) -> Model:
    """12 layers of 768, 12 heads, erf GELU; without a pooler: hidden states are all that is measured."""
    config = transformers.BertConfig(max_position_embeddings=MAX_POSITIONS, initializer_range=INITIALIZER_RANGE)
    make: Any = transformers.BertModel
    torch.manual_seed(seed)
    with _ordinary_tensors():
        module = make(config, add_pooling_layer=False).eval().requires_grad_(False)
        return Model(module, weights_of(module))


def _ordinary_tensors() -> AbstractContextManager[None]:
    """Parts run in inference mode, but torch.compile does not take parameters that were made in it."""
    return torch.inference_mode(False)


def padded_inputs(requests: Sequence[Int32Array]) -> dict[str, Tensor]:
    """Arguments of a transformers model, on the device."""
    ids, mask = pad(requests)
    inputs = {"input_ids": torch.from_numpy(ids).long().cuda(non_blocking=True)}
    if mask is not None:
        inputs["attention_mask"] = torch.from_numpy(mask).long().cuda(non_blocking=True)
    return inputs
