"""The operations of a forward pass on a GPU.

cuBLAS computes most matrix products, and one kernel of ours fuses the operations after each. The other products are our
own, with those operations in their epilogue (products.py).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from penstock.engine.gpu.attention import AttentionTables, attend
from penstock.engine.gpu.inputs import Inputs
from penstock.engine.gpu.products import Products, Split, short_tile
from penstock.engine.kernels.activation import bias_activation, gated
from penstock.engine.kernels.embed_norm import embed_norm
from penstock.engine.kernels.epilogues import activated, turned
from penstock.engine.kernels.mid_product import MidTile, mid_parts, mid_product, mid_turned
from penstock.engine.kernels.residual_norm import inner_norm, residual_norm, split_norm
from penstock.engine.kernels.rotate import rotate
from penstock.engine.kernels.short_product import short_product, split_product
from penstock.engine.kernels.wide_product import turned_product, wide_product
from penstock.engine.model.dense import function_of
from penstock.engine.model.weights import (
    Attention,
    Dense,
    Embeddings,
    Encoder,
    EncoderWeights,
    Layer,
    Norm,
    RotaryAttention,
)

_OPERATIONS = (
    "embed",
    "norm",
    "project",
    "project_gated",
    "project_add_norm",
    "project_add_norm_sum",
    "norm_add_norm_sum",
    "attend",
)


@dataclass(frozen=True, slots=True)
class GpuDense:
    """A matrix on the device."""

    weight: Tensor  # [out, in]
    weight_t: Tensor  # [in, out], a view of it, for `torch.mm`
    bias: Tensor | None
    activation: str  # a name that the kernels know
    rotary: RotaryAttention | None = None  # where it gives queries, keys and values: what then turns them

    @property
    def width(self) -> int:
        """Columns of the result."""
        return len(self.weight)


def prepare_for_gpu(weights: EncoderWeights, dtype: torch.dtype, device: torch.device) -> Encoder[GpuDense]:
    """The weights on the device in `dtype`; the angles of rotary attention stay float32."""
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
        weight = table(d.weight)
        return GpuDense(weight, weight.t(), bias, function_of(d.activation))

    encoder = weights.prepared(dense, table)
    return replace(encoder, layers=tuple(map(_with_rotary, encoder.layers)))


def _with_rotary(layer: Layer[GpuDense]) -> Layer[GpuDense]:
    """The layer, whose product to queries and keys turns them where its positions are rotary."""
    rotary = layer.attention if isinstance(layer.attention, RotaryAttention) else None
    return replace(layer, qkv=replace(layer.qkv, rotary=rotary))


def epilogues_of(encoder: Encoder[GpuDense]) -> set[str]:
    """The epilogues of wide products that `GpuOps` may launch for the encoder."""
    epilogues = set() if encoder.projection is None else {activated(encoder.projection.activation)}
    for layer in encoder.layers:
        up, gate = layer.up.activation, layer.gate
        epilogues.add(turned(encoder.heads.dim, layer.qkv.rotary) or activated(layer.qkv.activation))
        epilogues.add(activated(up) if gate is None else activated(function_of(gate), is_gated=True))
        if encoder.pre_norm or layer.inner_norms is not None:  # otherwise the others are cuBLAS's, or split
            epilogues |= {activated(dense.activation) for dense in (layer.attention_output, layer.down)}
    return epilogues


class GpuOps:
    """The operations for one batch. Each writes to `out` on torch's current stream, asynchronously."""

    def __init__(self, inputs: Inputs, tables: AttentionTables, products: Products) -> None:
        self._inputs = inputs
        self._tables = tables
        self._products = products

    def by_name(self) -> Mapping[str, Callable[..., Tensor]]:
        """For `Program.run`: the operations of `Ops`, each with its outputs first, then its inputs."""
        return {name: getattr(self, name) for name in _OPERATIONS}

    def embed(self, out: Tensor, embeddings: Embeddings) -> Tensor:
        inputs = self._inputs
        embed_norm(out, inputs.token_ids, inputs.positions, inputs.token_types, embeddings)
        return out

    def norm(self, out: Tensor, x: Tensor, norm: Norm) -> Tensor:
        residual_norm(out, x, None, None, norm)
        return out

    def project(self, out: Tensor, x: Tensor, dense: GpuDense) -> Tensor:
        rows, depth, rotary = *x.shape, dense.rotary
        if rotary is None:
            return self._product(out, x, dense)
        heads, positions = self._tables.heads, self._inputs.positions
        mid = self._products.mid_tile(rows, dense.width)
        is_wide = self._products.is_wide(rows, dense.width, depth, is_plain=False)
        if turned(heads.dim, rotary) is None or not (mid or is_wide):
            rotate(self._product(out, x, dense), positions, heads, rotary)
        elif mid is not None:
            mid_turned(out, x, dense.weight, dense.bias, positions, heads, rotary, mid)
        else:
            turned_product(out, x, dense.weight, dense.bias, positions, heads, rotary)
        return out

    def project_gated(self, out: Tensor, inner: Tensor, x: Tensor, dense: GpuDense, activation: str) -> Tensor:
        (rows, depth), kind = x.shape, function_of(activation)
        mid = self._products.mid_tile(rows, dense.width)
        if mid is not None:
            mid_product(out, x, dense.weight, dense.bias, kind, mid, is_gated=True)
        elif self._products.is_wide(rows, dense.width, depth, is_plain=False):
            wide_product(out, x, dense.weight, dense.bias, kind, is_gated=True)
        else:
            gated(out, self._product(inner, x, dense), kind)
        return out

    def project_add_norm(self, out: Tensor, x: Tensor, residual: Tensor, dense: GpuDense, norm: Norm) -> Tensor:
        return self._project_add_norm(out, None, x, residual, dense, norm)

    def project_add_norm_sum(
        self, out: Tensor, total: Tensor, x: Tensor, residual: Tensor, dense: GpuDense, norm: Norm
    ) -> Tensor:
        return self._project_add_norm(out, total, x, residual, dense, norm)

    def norm_add_norm_sum(
        self, out: Tensor, total: Tensor, x: Tensor, residual: Tensor, inner: Norm, norm: Norm
    ) -> Tensor:
        inner_norm(out, total, x, inner, residual, norm)
        return out

    def attend(self, out: Tensor, qkv: Tensor, attention: Attention) -> Tensor:
        return attend(out, qkv, attention, self._inputs, self._tables)

    def _product(self, out: Tensor, x: Tensor, dense: GpuDense) -> Tensor:
        rows, depth = x.shape
        is_plain = dense.activation == "identity"
        mid, tile = self._products.mid_tile(rows, dense.width), short_tile(rows, dense.width, depth)
        if mid is not None:
            is_before_attention = is_plain  # of queries, keys and values
            mid_product(out, x, dense.weight, dense.bias, dense.activation, mid, lets_next_late=is_before_attention)
        elif tile is not None and not is_plain:
            short_product(out, x, dense.weight, dense.bias, dense.activation, tile)
        elif self._products.is_wide(rows, dense.width, depth, is_plain=is_plain):
            wide_product(out, x, dense.weight, dense.bias, dense.activation)
        elif is_plain and dense.bias is not None:
            torch.addmm(dense.bias, x, dense.weight_t, out=out)
        else:
            torch.mm(x, dense.weight_t, out=out)
            bias_activation(out, dense.bias, dense.activation)
        return out

    def _project_add_norm(
        self, out: Tensor, total: Tensor | None, x: Tensor, residual: Tensor, dense: GpuDense, norm: Norm
    ) -> Tensor:
        rows, depth = x.shape
        product, split = out if total is None else total, self._products.split(rows, dense.width, depth)
        match split:
            case None if total is not None and self._products.is_wide_before_sum(rows, dense.width, depth):
                wide_product(product, x, dense.weight, None, "identity")
            case None:
                torch.mm(x, dense.weight_t, out=product)
            case Split(MidTile() as tile, 1):
                mid_product(product, x, dense.weight, None, "identity", tile)
            case Split(tile, num_parts):
                parts = self._scratch(num_parts, rows, dense.width)
                if isinstance(tile, MidTile):
                    mid_parts(parts, x, dense.weight, tile)
                else:
                    split_product(parts, x, dense.weight, tile)
                split_norm(out, parts, dense.bias, residual, norm, total)
                return out
        residual_norm(out, product, dense.bias, residual, norm, total)
        return out

    def _scratch(self, *shape: int) -> Tensor:
        """The beginning of the products' scratch, in this shape."""
        return self._products.scratch[: math.prod(shape)].view(shape)
