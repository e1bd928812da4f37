"""The operations of a forward pass on a GPU: cuBLAS for the products, one kernel of ours for everything around each.

Every function writes to `out`, on torch's current stream, and waits for nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.engine.gpu.attention import AttentionTables, Turns, attend
from penstock.engine.gpu.inputs import Inputs
from penstock.engine.kernels.activation import bias_activation, gated
from penstock.engine.kernels.embed_norm import embed_norm
from penstock.engine.kernels.residual_norm import residual_norm, residual_norm_sum
from penstock.engine.weights import Attention, Dense, Embeddings, Encoder, EncoderWeights, Norm, RotaryAttention

_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "swish": "silu"}


@dataclass(frozen=True, slots=True)
class GpuDense:
    """A matrix on the device, transposed for `torch.mm`."""

    weight_t: Tensor  # [in, out], a view of [out, in]: the layout cuBLAS wants for both
    bias: Tensor | None
    activation: str  # a name that the kernels know

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.weight_t.shape[1]


def prepare_for_gpu(weights: EncoderWeights, dtype: torch.dtype, device: torch.device) -> Encoder[GpuDense]:
    """Everything on the device in `dtype`, but for the angles of rotary attention: they stay float32."""
    angles = {
        id(tensor)
        for layer in weights.layers
        if isinstance(layer.attention, RotaryAttention)
        for tensor in (layer.attention.cosines, layer.attention.sines)
    }

    def table(tensor: Tensor) -> Tensor:
        return tensor.to(device, torch.float32 if id(tensor) in angles else dtype).contiguous()

    def dense(d: Dense) -> GpuDense:
        bias = None if d.bias is None else table(d.bias)
        return GpuDense(table(d.weight).t(), bias, _ACTIVATIONS.get(d.activation, d.activation))

    return weights.prepared(dense, table)


class GpuKernels:
    """The operations for one batch."""

    def __init__(self, inputs: Inputs, tables: AttentionTables) -> None:
        self._inputs = inputs
        self._tables = tables
        self._turns = Turns(inputs.positions)

    def by_name(self) -> Mapping[str, Callable[..., Tensor]]:
        """For `Program.run`: the operations of `PreNormOps`, each with its outputs first, then its inputs."""
        return {
            "embed": self.embed,
            "project": self.project,
            "gate": self.gate,
            "project_add_norm": self.project_add_norm,
            "project_add_norm_sum": self.project_add_norm_sum,
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
            torch.addmm(dense.bias, x, dense.weight_t, out=out)
        else:
            torch.mm(x, dense.weight_t, out=out)
            bias_activation(out, dense.bias, dense.activation)
        return out

    @staticmethod
    def gate(out: Tensor, x: Tensor, activation: str) -> Tensor:
        gated(out, x, _ACTIVATIONS.get(activation, activation))
        return out

    @staticmethod
    def project_add_norm(out: Tensor, x: Tensor, residual: Tensor, dense: GpuDense, norm: Norm) -> Tensor:
        torch.mm(x, dense.weight_t, out=out)
        residual_norm(out, out, dense.bias, residual, norm.weight, norm.bias, norm.eps)
        return out

    @staticmethod
    def project_add_norm_sum(
        out: Tensor, total: Tensor, x: Tensor, residual: Tensor, dense: GpuDense, norm: Norm
    ) -> Tensor:
        torch.mm(x, dense.weight_t, out=total)
        residual_norm_sum(out, total, total, dense.bias, residual, norm.weight, norm.bias, norm.eps)
        return out

    def attend(self, out: Tensor, qkv: Tensor, attention: Attention) -> Tensor:
        return attend(out, qkv, attention, self._inputs, self._tables, self._turns)
