"""Weights of encoders in eight-bit integers for a GPU: rotated and balanced as on a CPU (int8_linear.py).

The products to queries, keys and values, up and down are of integers, on Hopper alone. The product after attention,
the norms and the hidden states are in 16 bits.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any, cast

import structlog
import torch
from torch import Tensor

from penstock.engine.errors import UnsupportedCheckpoint, UnsupportedDevice
from penstock.engine.gpu.ops import GpuDense, prepare_for_gpu
from penstock.engine.kernels.int8_product import Int8Matrix, block_order
from penstock.engine.kernels.int8_rows import ROTATED
from penstock.engine.kernels.library import MAX_HIDDEN
from penstock.engine.model.dense import function_of
from penstock.engine.model.int8_balance import Int8Plan, NoInt8, balance, block_of, require_digits
from penstock.engine.model.weights import Dense, Encoder, EncoderWeights, Layer, Norm, RotaryAttention

_LARGEST = 127.0

log = structlog.get_logger("penstock.engine")


@dataclass(frozen=True, slots=True)
class Int8Dense:
    """A matrix on the device, for rows that are multiplied by `factors` and rotated."""

    weight: Int8Matrix  # the scales undo the rotation's too
    factors: Tensor  # [in]
    activation: str  # a name that the kernels know
    is_fed: bool = False  # whether the norm before it gives its rows in integers
    gives_blocks: bool = False  # whether the next product takes its results as `Int8Blocks`
    takes_blocks: bool = False  # whether its inputs come so, and its weights are in `block_order`

    @property
    def width(self) -> int:
        """Columns of the result."""
        return len(self.weight.integers)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedingNorm(Norm):
    """A norm whose rows an Int8Dense takes, in integers."""

    factors: Tensor


def require_int8_supported(weights: EncoderWeights) -> None:
    """Raise UnsupportedDevice for an encoder whose forward has no kernels in integers."""
    layers = weights.layers
    missing = {
        "norms before each block (pre-norm)": weights.pre_norm,
        "gates": any(layer.gate is not None for layer in layers),
        "norms of a block's result": any(layer.inner_norms is not None for layer in layers),
        "rotary positions": any(isinstance(layer.attention, RotaryAttention) for layer in layers),
    }
    found = [name for name, is_there in missing.items() if is_there]
    if found:
        raise UnsupportedDevice(
            f"dtype 'int8' on a GPU has no kernels for {', '.join(found)}. Use auto, or int8 with device='cpu'."
        )


def prepare_int8(
    weights: EncoderWeights, plan: Int8Plan, dtype: torch.dtype, device: torch.device
) -> tuple[Encoder[GpuDense | Int8Dense], tuple[str, ...]]:
    """As `prepare_for_gpu`, in `dtype` beside the integers; and the names of matrices that stay in `dtype`.

    They do not suit, which is logged. Raises UnsupportedCheckpoint where none suits.
    """
    unsuited = defaultdict[str, list[str]](list)
    converted: dict[int, GpuDense | Int8Dense] = {}  # layers may share their weights

    def convert(own: Dense, plain: GpuDense, name: str, *, takes_blocks: bool = False) -> GpuDense | Int8Dense:
        if id(own) not in converted:
            try:
                if id(own) in plan.reasons:
                    raise NoInt8(plan.reasons[id(own)])
                converted[id(own)] = _quantised(own, plain, plan.sizes[id(own)], takes_blocks=takes_blocks)
            except NoInt8 as error:
                unsuited[str(error)].append(name)
                converted[id(own)] = plain
        return converted[id(own)]

    encoder = prepare_for_gpu(weights, dtype, device)
    layers: list[Layer[Any]] = []
    for i, (own, plain) in enumerate(zip(weights.layers, cast("Encoder[Any]", encoder).layers, strict=True)):
        qkv, up = convert(own.qkv, plain.qkv, f"{i} qkv"), convert(own.up, plain.up, f"{i} up")
        down = convert(own.down, plain.down, f"{i} down", takes_blocks=isinstance(up, Int8Dense))
        if isinstance(up, Int8Dense) and isinstance(down, Int8Dense):
            up = replace(up, weight=up.weight.feeding(down.factors), gives_blocks=True)
        layers.append(replace(plain, qkv=qkv, up=up, down=down))
    if not any(isinstance(dense, Int8Dense) for dense in converted.values()):
        raise UnsupportedCheckpoint(
            f"dtype 'int8': no matrix of this model can be in eight-bit integers: {'; '.join(unsuited)}. Use auto."
        )
    for reason, names in unsuited.items():
        log.warning("layers_not_in_int8", layers=names, dtype=str(dtype).removeprefix("torch."), reason=reason)
    result: Encoder[Any] = replace(cast("Encoder[Any]", encoder), layers=_fed(layers))
    return result, tuple([name for names in unsuited.values() for name in names])


def _fed(layers: list[Layer[GpuDense | Int8Dense]]) -> tuple[Layer[GpuDense | Int8Dense], ...]:
    """The layers, whose norms give their rows in integers to the products that follow."""
    result = []
    for i, layer in enumerate(layers):
        is_last = i + 1 == len(layers)
        result.append(
            replace(
                layer,
                qkv=layer.qkv if i == 0 else _as_fed(layer.qkv),
                attention_norm=_feeding(layer.attention_norm, layer.up),
                up=_as_fed(layer.up),
                output_norm=layer.output_norm if is_last else _feeding(layer.output_norm, layers[i + 1].qkv),
            )
        )
    return tuple(result)


def _feeding(norm: Norm, dense: GpuDense | Int8Dense) -> Norm:
    if isinstance(dense, GpuDense):
        return norm
    return FeedingNorm(norm.weight, norm.bias, norm.eps, norm.subtracts_mean, factors=dense.factors)


def _as_fed(dense: GpuDense | Int8Dense) -> GpuDense | Int8Dense:
    return dense if isinstance(dense, GpuDense) else replace(dense, is_fed=True)


def _quantised(own: Dense, plain: GpuDense, sizes: Tensor, *, takes_blocks: bool) -> Int8Dense:
    """Raises NoInt8."""
    width, depth = own.weight.shape
    block_of(depth, (ROTATED,))
    if depth > MAX_HIDDEN and not takes_blocks:
        raise NoInt8(f"{depth} inputs are more than {MAX_HIDDEN}")
    device, dtype = plain.weight.device, plain.weight.dtype
    factors = 1.0 / balance(own.weight, sizes)
    factors = (factors / factors.abs().mean()).to(device, dtype)  # around 1, in the range of 16 bits
    weight = own.weight.to(device) / factors.float()
    rotated = (weight.view(-1, ROTATED) @ hadamard(device)).view(width, depth)
    largest = rotated.abs().amax(dim=1)
    scales = torch.where(largest == 0, 1.0, largest / _LARGEST)
    require_digits(weight, scales, ROTATED)
    integers = (rotated / scales[:, None]).round().to(torch.int8)
    if takes_blocks:
        integers = integers.view(width, -1, ROTATED)[:, :, block_order().to(device)].reshape(width, depth)
    matrix = Int8Matrix.of(integers, scales / ROTATED, plain.bias)
    return Int8Dense(matrix, factors, function_of(own.activation), takes_blocks=takes_blocks)


def hadamard(device: torch.device) -> Tensor:
    """[128, 128], of 1 and -1."""
    result = torch.ones(1, 1, device=device)
    while len(result) < ROTATED:
        result = torch.cat((torch.cat((result, result), 1), torch.cat((result, -result), 1)))
    return result
