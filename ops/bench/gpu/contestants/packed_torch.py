"""The same packed forward pass by torch's own operators and its FlashAttention-2: once, or in one CUDA graph."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.gpu.ops import GpuDense
from penstock.engine.model.dense import activate
from penstock.engine.model.forward import forward
from penstock.engine.model.weights import Attention, Embeddings, Encoder, Norm, PlainAttention
from penstock.engine.types import Int32Array, PackedBatch
from penstock.ops.bench.gpu.bench import Bench, pack
from penstock.ops.bench.gpu.contestants import MakeWork
from penstock.ops.bench.gpu.gpu_tables import FROM_HOST, PACKED
from penstock.ops.bench.gpu.timing import Work


@dataclass(frozen=True, slots=True)
class TorchOps:
    """Implements `penstock.engine.model.forward.Ops` for one batch. Nothing in it waits for the device."""

    num_heads: int
    token_ids: Tensor  # [T] int32, as all
    positions: Tensor  # [T]
    cu_seqlens: Tensor  # [B+1]
    max_seqlen: int

    @classmethod
    def upload(cls, batch: PackedBatch, num_heads: int, device: torch.device) -> "TorchOps":
        """Upload in one asynchronous copy."""
        tokens, ends = len(batch.token_ids), len(batch.cu_seqlens)
        host = torch.empty(2 * tokens + ends, dtype=torch.int32, pin_memory=device.type == "cuda")
        positions = np.arange(tokens, dtype=np.int32) - np.repeat(batch.cu_seqlens[:-1], np.diff(batch.cu_seqlens))
        np.concatenate((batch.token_ids, positions, batch.cu_seqlens), out=host.numpy(), casting="same_kind")
        values = host.to(device, non_blocking=True)
        return cls(num_heads, values[:tokens], values[tokens : 2 * tokens], values[2 * tokens :], batch.max_seqlen)

    def embed(self, embeddings: Embeddings) -> Tensor:
        hidden = F.embedding(self.token_ids, embeddings.words)
        if embeddings.positions is not None:
            hidden = hidden + F.embedding(self.positions, embeddings.positions)
        if embeddings.token_types is not None:
            hidden = hidden + embeddings.token_types[0]
        return hidden if embeddings.norm is None else self.norm(hidden, embeddings.norm)

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        if not norm.subtracts_mean:
            return F.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)
        return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)

    def project(self, x: Tensor, dense: GpuDense) -> Tensor:
        projected = F.linear(x, dense.weight_t.t(), dense.bias)
        return activate(projected, dense.activation)

    def project_gated(self, x: Tensor, dense: GpuDense, activation: str) -> Tensor:
        first, second = self.project(x, dense).chunk(2, dim=-1)
        return activate(first, activation) * second

    def project_add_norm(self, x: Tensor, dense: GpuDense, residual: Tensor, norm: Norm) -> Tensor:
        return self.norm(self.project(x, dense) + residual, norm)

    def project_add_norm_sum(self, x: Tensor, dense: GpuDense, residual: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        total = self.project(x, dense) + residual
        return self.norm(total, norm), total

    def norm_add_norm_sum(self, x: Tensor, inner: Norm, residual: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        total = self.norm(x, inner) + residual
        return self.norm(total, norm), total

    def attend(self, qkv: Tensor, attention: Attention) -> Tensor:
        if not isinstance(attention, PlainAttention):
            raise ValueError(f"this contestant is of plain attention, not {type(attention).__name__}.")
        return flash_varlen(qkv, self.cu_seqlens, self.max_seqlen, self.num_heads)


def flash_varlen(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, num_heads: int) -> Tensor:
    """torch's FlashAttention-2 over packed sequences, without its wrapper: [T, 3H] to [T, H]."""
    query, key, value = qkv.view(len(qkv), 3, num_heads, -1).unbind(1)
    context: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, 0.0, False, False
    )[0]
    return context.view(len(qkv), -1)


def _uploaded(encoder: Encoder[GpuDense], request: Int32Array) -> TorchOps:
    return TorchOps.upload(pack([request]), encoder.heads.queries, torch.device("cuda"))


def _graph(bench: Bench, request: Int32Array) -> Work:
    """Made for exactly this request."""
    ops = _uploaded(bench.prepared, request)
    return bench.recorder.capture(lambda: forward(bench.prepared, ops))


def _hosted(bench: Bench, request: Int32Array) -> Work:
    encoder = bench.prepared
    return lambda: forward(encoder, _uploaded(encoder, request))


CONTESTANTS: Mapping[str, MakeWork] = {f"{PACKED}, one graph": _graph, f"{PACKED}{FROM_HOST}": _hosted}
