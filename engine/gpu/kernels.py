"""The operations of a forward pass on a GPU: cuBLAS for the products, one kernel of ours for everything around each.

Every function writes to `out`, on torch's current stream, and waits for nothing.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.engine.gpu.inputs import Inputs
from penstock.engine.kernels import short_attention
from penstock.engine.kernels.activation import bias_activation
from penstock.engine.kernels.embed_norm import embed_norm
from penstock.engine.kernels.residual_norm import residual_norm
from penstock.engine.weights import (
    Attention,
    Dense,
    Embeddings,
    Encoder,
    EncoderWeights,
    Norm,
    PlainAttention,
)


@dataclass(frozen=True, slots=True)
class GpuDense:
    """A matrix on the device, transposed for `torch.mm`."""

    weight_t: Tensor  # [in, out], a view of [out, in]: the layout cuBLAS wants for both
    bias: Tensor | None
    activation: str

    @property
    def width(self) -> int:
        """Columns of the product."""
        return self.weight_t.shape[1]


def prepare_for_gpu(weights: EncoderWeights, dtype: torch.dtype, device: torch.device) -> Encoder[GpuDense]:
    """Everything on the device in `dtype`."""

    def table(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype).contiguous()

    def dense(d: Dense) -> GpuDense:
        return GpuDense(table(d.weight).t(), None if d.bias is None else table(d.bias), d.activation)

    return weights.prepared(dense, table)


class GpuKernels:
    """The operations for one batch."""

    def __init__(self, inputs: Inputs, num_heads: int) -> None:
        self._inputs = inputs
        self._num_heads = num_heads

    def by_name(self) -> Mapping[str, Callable[..., Tensor]]:
        """For `Program.run`."""
        return {
            "embed": self.embed,
            "project": self.project,
            "project_add_norm": self.project_add_norm,
            "attend": self.attend,
        }

    def embed(self, out: Tensor, embeddings: Embeddings) -> Tensor:
        inputs, norm = self._inputs, embeddings.norm
        embed_norm(
            out,
            inputs.token_ids,
            inputs.positions,
            inputs.token_types,
            embeddings.words,
            embeddings.positions,
            embeddings.token_types,
            norm.weight,
            norm.bias,
            norm.eps,
        )
        return out

    @staticmethod
    def project(out: Tensor, x: Tensor, dense: GpuDense) -> Tensor:
        if dense.activation == "identity" and dense.bias is not None:
            return torch.addmm(dense.bias, x, dense.weight_t, out=out)
        torch.mm(x, dense.weight_t, out=out)
        if dense.activation != "identity":
            bias_activation(out, dense.bias, dense.activation)
        return out

    @staticmethod
    def project_add_norm(out: Tensor, x: Tensor, residual: Tensor, dense: GpuDense, norm: Norm) -> Tensor:
        torch.mm(x, dense.weight_t, out=out)
        residual_norm(out, out, dense.bias, residual, norm.weight, norm.bias, norm.eps)
        return out

    def attend(self, out: Tensor, qkv: Tensor, attention: Attention) -> Tensor:
        match attention:
            case PlainAttention():
                return self._plain(out, qkv)
            case _:
                raise RuntimeError(f"no kernel for {type(attention).__name__}. This is a bug.")

    def _plain(self, out: Tensor, qkv: Tensor) -> Tensor:
        """The short kernel where it can, else torch's flash attention, which allocates its output itself."""
        max_seqlen = self._inputs.shape.max_seqlen
        head_dim = out.shape[1] // self._num_heads
        scale = 1.0 / math.sqrt(head_dim)
        if short_attention.supports(head_dim, max_seqlen):
            short_attention.short_attention(out, qkv, self._inputs.cu_seqlens, max_seqlen, self._num_heads, scale)
            return out
        return flash_attention(qkv, self._inputs.cu_seqlens, max_seqlen, self._num_heads, scale)


def flash_attention(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, num_heads: int, scale: float) -> Tensor:
    """torch's FlashAttention-2 over packed sequences of any length: [R, 3H] to [R, H]. For sm_80 and later."""
    query, key, value = qkv.view(len(qkv), 3, num_heads, -1).unbind(1)
    context: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, 0.0, False, False, scale=scale
    )[0]
    return context.view(len(qkv), -1)
