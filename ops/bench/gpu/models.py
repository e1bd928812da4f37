"""Random models in the shapes of published ones, as transformers has them and as the engine runs them."""

import copy
from collections.abc import Mapping, Sequence
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
# Twice the usual. At 0.02 attention is nearly uniform, and a comparison of results would not notice a wrong one.
INITIALIZER_RANGE = 0.04
_BASE: dict[str, Any] = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
# The configurations of published checkpoints; what is not named is transformers' default. A new shape is a new row.
SHAPES: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "BERT-base": (transformers.BertConfig, {"max_position_embeddings": 1024}),  # ByteTransformer's grid goes up to it
    "MiniLM-L6": (
        transformers.BertConfig,
        {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    ),
    "RoBERTa-base": (
        transformers.RobertaConfig,
        {"vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1},
    ),
    "DistilBERT-base": (transformers.DistilBertConfig, {}),
    "ALBERT-base": (transformers.AlbertConfig, _BASE),
    "ELECTRA-base": (transformers.ElectraConfig, {**_BASE, "embedding_size": 768}),
    "MPNet-base": (transformers.MPNetConfig, {"vocab_size": 30_527, "max_position_embeddings": 514}),
    "DeBERTa-v3-base": (
        transformers.DebertaV2Config,
        {
            **_BASE,
            "num_hidden_layers": 12,
            "relative_attention": True,
            "position_buckets": 256,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": "p2c|c2p",
            "max_relative_positions": -1,
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
    ),
    "ModernBERT-base": (transformers.ModernBertConfig, {}),
}


@dataclass(frozen=True, slots=True)
class Model:
    """One random model, as itself and as the engine's weights."""

    reference: nn.Module  # of transformers, float32, on the CPU
    weights: EncoderWeights

    @property
    def vocab_size(self) -> int:
        return self.weights.vocab_size

    def on_device(self, attention: str, dtype: torch.dtype = DTYPE) -> nn.Module:
        """A copy for transformers to run; attention: "eager", "sdpa" or "flash_attention_2"."""
        with _ordinary_tensors():
            model: Any = copy.deepcopy(self.reference)
            model.set_attn_implementation(attention)
            module: nn.Module = model.to("cuda", dtype)
        return module

    def prepared(self) -> Encoder[GpuDense]:
        """The weights on the device, as the engine's own kernels and the plain torch forward take them."""
        return prepare_for_gpu(self.weights, DTYPE, torch.device("cuda"))

    def encoder(self, graphs: bool = True) -> GpuEncoder:
        return GpuEncoder(self.weights, DTYPE, graphs=graphs)


def random_model(shape: str, seed: int) -> Model:
    """A model of a row of `SHAPES`, without a pooler: hidden states are all that is measured."""
    kind, values = SHAPES[shape]
    auto: Any = transformers.AutoModel
    torch.manual_seed(seed)
    with _ordinary_tensors():
        module = auto.from_config(kind(**values, initializer_range=INITIALIZER_RANGE)).eval().requires_grad_(False)
        if hasattr(module, "pooler"):
            module.pooler = None
        return Model(module, weights_of(module))


def bert_base(seed: int) -> Model:
    """BERT-base (12 layers of 768, 12 heads, erf GELU) with 1,024 positions."""
    return random_model("BERT-base", seed)


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
