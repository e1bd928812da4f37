"""The operations of a forward pass in eight-bit integers on a GPU."""

import torch
from torch import Tensor

from penstock.engine.gpu.attention import AttentionTables
from penstock.engine.gpu.inputs import Inputs
from penstock.engine.gpu.int8_encoder import FeedingNorm, Int8Dense
from penstock.engine.gpu.ops import GpuDense, GpuOps
from penstock.engine.gpu.products import Products
from penstock.engine.kernels.int8_product import Int8Blocks, int8_product, product_of_blocks, product_to_blocks
from penstock.engine.kernels.int8_rows import ROTATED, Int8Rows, int8_norm, int8_rows
from penstock.engine.kernels.residual_norm import residual_norm
from penstock.engine.model.weights import EncoderWeights, Norm

_SCALE_BYTES = 4


def int8_rows_bytes(weights: EncoderWeights) -> int:
    """Bytes of a row of any of the encoder's products in integers, with its scale."""
    return max(weights.hidden_size, *(layer.down.weight.shape[1] for layer in weights.layers)) + _SCALE_BYTES


class Int8Ops(GpuOps):
    """As `GpuOps`. Rows in integers lie in the scratch from the operation that makes them to the next, a product."""

    def __init__(self, inputs: Inputs, tables: AttentionTables, products: Products, scratch: Tensor) -> None:
        """scratch: `int8_rows_bytes` for each row of the batch."""
        super().__init__(inputs, tables, products)
        self._int8_scratch = scratch.view(-1).view(torch.int8)

    def project(self, out: Tensor, x: Tensor, dense: GpuDense | Int8Dense) -> Tensor:
        if isinstance(dense, GpuDense):
            return super().project(out, x, dense)
        rows = self._rows_for(x, dense)
        if dense.gives_blocks:
            product_to_blocks(_blocks_in(out), rows, dense.weight, dense.activation)
        else:
            int8_product(out, rows, dense.weight, dense.activation)
        return out

    def project_add_norm(
        self, out: Tensor, x: Tensor, residual: Tensor, dense: GpuDense | Int8Dense, norm: Norm
    ) -> Tensor:
        if isinstance(dense, GpuDense) and not isinstance(norm, FeedingNorm):
            return super().project_add_norm(out, x, residual, dense, norm)
        bias = None
        if isinstance(dense, GpuDense):
            torch.mm(x, dense.weight_t, out=out)
            bias = dense.bias
        elif dense.takes_blocks:
            product_of_blocks(out, _blocks_in(x), dense.weight)
        else:
            int8_product(out, self._rows_for(x, dense), dense.weight, dense.activation)
        if isinstance(norm, FeedingNorm):
            int8_norm(out, self._rows(*out.shape), out, bias, residual, norm, norm.factors)
        else:
            residual_norm(out, out, bias, residual, norm)
        return out

    def _rows_for(self, x: Tensor, dense: Int8Dense) -> Int8Rows:
        """Rows of x as the matrix takes them."""
        rows = self._rows(*x.shape)
        if not dense.is_fed:
            int8_rows(rows, x, dense.factors)
        return rows

    def _rows(self, rows: int, depth: int) -> Int8Rows:
        """Their place."""
        size = rows * depth
        scales = self._int8_scratch[size : size + rows * _SCALE_BYTES].view(torch.float32)
        return Int8Rows(self._int8_scratch[:size].view(rows, depth), scales)


def _blocks_in(buffer: Tensor) -> Int8Blocks:
    """The place of rows with scales of blocks in the buffer of the same rows in 16 bits."""
    (rows, width), values = buffer.shape, buffer.view(-1).view(torch.int8)
    size, num_blocks = rows * width, width // ROTATED
    scales = values[size : size + rows * num_blocks * _SCALE_BYTES].view(torch.float32)
    return Int8Blocks(values[:size].view(rows, width), scales.view(num_blocks, rows))
