"""Random models in the shapes of real ones, and each as transformers, as plain torch and as the engine runs it."""

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, DataCollatorWithFlattening, DebertaV2Config, DebertaV2Model

from penstock.engine.gpu import GpuEncoder
from penstock.engine.gpu.ops import GpuDense, prepare_for_gpu
from penstock.engine.model.forward import forward
from penstock.engine.model.weights import Encoder, EncoderWeights
from penstock.engine.packed_model import weights_of
from penstock.engine.types import Int32Array, PackedBatch
from penstock.ops.bench.gpu.request_batches import pack, pad
from penstock.ops.bench.gpu.timing import Recorder, Work
from penstock.ops.bench.gpu.torch_ops import Choices, TorchOps

DTYPE = torch.float16
MAX_POSITIONS = 1024  # ByteTransformer's grid goes up to it
# Twice the usual. At 0.02 attention is nearly uniform, and a comparison of results would not notice a wrong one.
INITIALIZER_RANGE = 0.04
DEBERTA_V3_BASE: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "max_relative_positions": -1,
    "position_biased_input": False,
    "type_vocab_size": 0,
}


@dataclass(frozen=True, slots=True)
class Model:
    """One random model, as itself and as the engine's weights."""

    reference: nn.Module  # float32, on the CPU
    weights: EncoderWeights
    intermediate_size: int

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


def bert_base(seed: int) -> Model:
    """BERT-base (12 layers of 768, 12 heads, erf GELU) with 1,024 positions."""
    config = BertConfig(max_position_embeddings=MAX_POSITIONS, initializer_range=INITIALIZER_RANGE)
    return _model(lambda: BertModel(config, add_pooling_layer=False), config.intermediate_size, seed)


def deberta_v3_base(seed: int) -> Model:
    """DeBERTa-v3-base: the values of its published config.json."""
    config = DebertaV2Config(**DEBERTA_V3_BASE, initializer_range=INITIALIZER_RANGE)
    return _model(lambda: DebertaV2Model(config), config.intermediate_size, seed)


def _model(make: Callable[[], Any], intermediate_size: int, seed: int) -> Model:
    torch.manual_seed(seed)
    with _ordinary_tensors():
        module: nn.Module = make().eval().requires_grad_(False)
        return Model(module, weights_of(module), intermediate_size)


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


def flattened_inputs(requests: Sequence[Int32Array]) -> dict[str, Any]:
    """Inputs of a transformers model with FlashAttention-2 and no padding, as sentence-transformers 6 makes them."""
    make: Any = DataCollatorWithFlattening
    collator = make(return_flash_attn_kwargs=True, return_position_ids=True)
    features = collator([{"input_ids": request.tolist()} for request in requests])
    names = ("input_ids", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
    found = {name: features[name] for name in names}
    return {name: v.cuda(non_blocking=True) if isinstance(v, Tensor) else v for name, v in found.items()}


def transformers_work(model: Callable[..., Any], requests: Sequence[Int32Array]) -> Work:
    """One forward of a transformers model; the inputs are on the device already."""
    inputs = padded_inputs(requests)
    return lambda: model(**inputs).last_hidden_state


def torch_work(encoder: Encoder[GpuDense], requests: Sequence[Int32Array], choices: Choices) -> Work:
    """One forward in plain torch; the inputs are on the device already."""
    ops = torch_ops(encoder, pack(requests), choices)
    return lambda: forward(encoder, ops)


def torch_ops(encoder: Encoder[GpuDense], batch: PackedBatch, choices: Choices) -> TorchOps:
    """Plain torch's operations for one batch, which is uploaded to memory of its own."""
    return TorchOps(batch, encoder.num_heads, choices, DTYPE, torch.device("cuda"))


def packed_torch_graph(
    encoder: Encoder[GpuDense], requests: Sequence[Int32Array], choices: Choices, recorder: Recorder
) -> Work:
    """`torch_work` in one CUDA graph made for exactly this batch."""
    return recorder.capture(torch_work(encoder, requests, choices))


class NestedEncoder:
    """torch's nn.TransformerEncoder of BERT-base's shape, which turns a padding mask into nested tensors.

    Layers only: its input is hidden states, so the embedding is not in its time.
    """

    def __init__(self) -> None:
        layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True, dropout=0.0)
        self._encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=True).eval().to("cuda", DTYPE)

    def work(self, requests: Sequence[Int32Array]) -> Work:
        """One forward; the inputs are on the device already."""
        ids, mask = pad(requests)
        x = torch.randn(*ids.shape, 768, device="cuda", dtype=DTYPE)
        padding = None if mask is None else torch.from_numpy(mask == 0).cuda()
        return lambda: self._encoder(x, src_key_padding_mask=padding)
