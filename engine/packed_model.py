"""The runtime without Kafka: a transformers model that is in memory, run without padding.

>>> from penstock.engine import from_torch
>>> fast = from_torch(model)
>>> hidden = fast(input_ids, attention_mask)  # [B, S, H]: the model's last_hidden_state, zero at padding
>>> hidden = fast.packed(token_ids, cu_seqlens)  # [T, H]
"""

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.engine.cpu.int8_encoder import encoder_precision, plan_int8, prepare_in, rounded_product
from penstock.engine.cpu.ops import CPU_DTYPES, encode_on_cpu
from penstock.engine.device import GPU_DTYPES, choose_device_for, encoder_gpu_precision
from penstock.engine.errors import NotFinite
from penstock.engine.families import family_of
from penstock.engine.model.checkpoint import Checkpoint, memory_checkpoint
from penstock.engine.model.layout import sort_by_length
from penstock.engine.model.weights import EncoderWeights
from penstock.engine.types import Int32Array, PackedBatch, TaskOptions

Encode = Callable[[PackedBatch], Tensor]  # hidden states [T, H] in the order of the batch's tokens; ignores its options
_ANY_TASK = TaskOptions("embed")  # a batch has options for each sequence
_HOST = torch.device("cpu")  # of tensors that name no device, also where a caller has set another default


def from_torch(hf_model: Any, dtype: str = "auto", device: str = "auto") -> "PackedModel":
    """A copy of a transformers model's encoder, with or without a head, on this runtime.

    hf_model: a `PreTrainedModel` of a supported family, on any device. Its weights are copied.
    dtype: precision of the arithmetic, as in `load_engine`. Results have the model's own dtype.
    Raises UnsupportedCheckpoint, CheckpointError, UnsupportedDevice.
    """
    with _HOST:
        return _packed(hf_model, dtype, device)


def _packed(hf_model: Any, dtype: str, device: str) -> "PackedModel":
    checkpoint = _copied(hf_model)
    family = family_of(checkpoint)
    weights = family.encoder(checkpoint)
    match choose_device_for(weights, device):
        case "cpu":
            precision = encoder_precision(dtype)
            arithmetic, encode_with = CPU_DTYPES[precision], _cpu_encode
        case "cuda":
            precision = encoder_gpu_precision(dtype, overflows_float16=family.overflows_float16)
            arithmetic, encode_with = GPU_DTYPES[precision], _gpu_encode
        case other:
            raise RuntimeError(f"no encoder for device {other!r}. This is a bug.")
    checkpoint.weights.require_range(arithmetic)
    return PackedModel(encode_with(weights, precision), weights, hf_model.dtype)


def weights_of(hf_model: Any) -> EncoderWeights:
    """A copy of a transformers model's encoder weights."""
    with _HOST:
        checkpoint = _copied(hf_model)
        return family_of(checkpoint).encoder(checkpoint)


def _copied(hf_model: Any) -> Checkpoint:
    state = {name: tensor.detach().to("cpu", copy=True) for name, tensor in hf_model.state_dict().items()}
    return memory_checkpoint(type(hf_model).__name__, hf_model.config.to_dict(), state)


class PackedModel:
    """An encoder whose results lie on the device of the token ids.

    Any thread may call it. On a CPU calls run concurrently. On a GPU they run one at a time, for planned memory is of
    one batch, and every calling thread must have the same current stream: by default it has.
    """

    def __init__(self, encode: Encode, weights: EncoderWeights, dtype: torch.dtype) -> None:
        types = weights.embeddings.token_types
        self._encode = encode
        self._num_types = None if types is None else len(types)
        self._dtype = dtype
        self._hidden_size = weights.hidden_size
        self._vocab_size = weights.vocab_size
        self._max_tokens = weights.max_tokens

    def __call__(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Last hidden state [B, S, H] of `input_ids` [B, S]; zero where `attention_mask` is.

        Raises ValueError for padding that is not on the right, and as `packed` does.
        """
        own = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        own = own.cpu()
        lengths = own.sum(dim=1)
        if not torch.equal(own, torch.arange(own.shape[1], device=own.device) < lengths[:, None]):
            raise ValueError("attention_mask has zeros before ones. Pad on the right (padding_side='right').")
        if not own.any():
            return torch.zeros(*input_ids.shape, self._hidden_size, dtype=self._dtype, device=input_ids.device)
        present = lengths[lengths > 0]
        cu_seqlens = torch.cat((present.new_zeros(1), present.cumsum(dim=0)))
        types = None if token_type_ids is None else token_type_ids.cpu()[own]
        hidden = self.packed(input_ids.cpu()[own], cu_seqlens, types).to(input_ids.device)
        padded = hidden.new_zeros(*input_ids.shape, hidden.shape[1])
        padded[own.to(input_ids.device)] = hidden
        return padded

    @torch.no_grad()
    def packed(self, token_ids: Tensor, cu_seqlens: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Last hidden states [T, H] of sequences end to end; sequence i is token_ids[cu_seqlens[i] : cu_seqlens[i+1]].

        Raises ValueError where ids, types, bounds or lengths are not the model's, and NotFinite, which names the
        sequences whose hidden states hold NaN or infinity. A GPU's work is waited for.
        """
        ids, bounds = _checked("token ids", token_ids, self._vocab_size), cu_seqlens.cpu().numpy().astype(np.int32)
        types = None
        if token_type_ids is not None and self._num_types is not None:
            types = _checked("token_type_ids", token_type_ids, self._num_types)
        longest = int(np.diff(bounds).max(initial=0))
        if self._max_tokens is not None and longest > self._max_tokens:
            raise ValueError(f"the longest sequence has {longest} tokens; the model takes {self._max_tokens}.")
        with _HOST:
            hidden = self._encode(PackedBatch(ids, bounds, longest, types, [_ANY_TASK] * (len(bounds) - 1)))
        _require_finite(hidden, bounds)
        return hidden.to(token_ids.device, self._dtype)


def _cpu_encode(weights: EncoderWeights, precision: str) -> Encode:
    (encoder, _), dtype = prepare_in(precision, weights), CPU_DTYPES[precision]

    def encode(batch: PackedBatch) -> Tensor:
        layout = sort_by_length(batch.cu_seqlens)
        in_order = encode_on_cpu(encoder, batch, layout, dtype)[: layout.num_tokens]
        hidden = torch.empty_like(in_order)
        hidden[torch.from_numpy(layout.tokens[: layout.num_tokens])] = in_order
        return hidden

    return encode


def _gpu_encode(weights: EncoderWeights, precision: str) -> Encode:
    from penstock.engine.gpu import GpuEncoder  # needs CuPy

    plan = plan_int8(weights, rounded_product) if precision == "int8" else None
    encoder, turn = GpuEncoder(weights, GPU_DTYPES[precision], int8_plan=plan), Lock()

    def encode(batch: PackedBatch) -> Tensor:
        with turn:
            return encoder.run(batch).clone()  # `run`'s result is overwritten by the next batch

    return encode


def _require_finite(hidden: Tensor, bounds: Int32Array) -> None:
    if not len(hidden) or bool(torch.stack(hidden.aminmax()).isfinite().all()):  # one pass; NaN is both
        return
    bad = np.flatnonzero(~hidden.isfinite().all(dim=1).cpu().numpy())
    sequences = np.unique(np.searchsorted(bounds, bad, side="right") - 1).tolist()
    raise NotFinite(
        f"the hidden states of sequences {sequences} hold NaN or infinity: numbers overflow in this dtype. The other "
        "sequences are not affected; leave these out, or use a wider dtype."
    )


def _checked(name: str, values: Tensor, size: int) -> Int32Array:
    if len(values) and (values.min() < 0 or values.max() >= size):
        raise ValueError(f"{name} must lie in [0, {size}); found {values.min()} to {values.max()}.")
    return values.cpu().numpy().astype(np.int32)
