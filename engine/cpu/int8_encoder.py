"""An encoder on a CPU in a precision by its name; in int8, with inputs measured and layers left out where it must."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields

import numpy as np
import structlog
import torch
from torch import Tensor

from penstock.engine.cpu.int8_linear import Int8Linear, require_int8_products
from penstock.engine.cpu.linear import Linear, RoundedLinear, make_linear
from penstock.engine.cpu.ops import CPU_DTYPES, cpu_precision, encode_on_cpu, prepare_for_cpu
from penstock.engine.device import is_bfloat16_fast
from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.model.int8_balance import Int8Plan, NoInt8
from penstock.engine.model.layout import sort_by_length
from penstock.engine.model.weights import Dense, Encoder, EncoderWeights
from penstock.engine.types import PackedBatch, TaskOptions

log = structlog.get_logger("penstock.engine")

_NUM_SEQUENCES, _LENGTH = 16, 16
_MOST_LOST = 0.03  # by a matrix; of normally distributed inputs and weights it is 0.01


def encoder_precision(dtype: str) -> str:
    """`cpu_precision` of a packed encoder, which can also be "int8". Raises UnsupportedDevice."""
    if dtype != "int8":
        return cpu_precision(dtype)
    require_int8_products()
    return dtype


def prepare_in(precision: str, weights: EncoderWeights) -> tuple[Encoder[Linear], tuple[str, ...]]:
    """The encoder in a precision of `CPU_DTYPES`, and the names of matrices that are in a wider one, which are logged.

    In "int8" these are matrices that do not suit it, or whose outputs would lose too much by it. They are in bfloat16
    where the processor has that faster, else in float32. Raises UnsupportedCheckpoint where all are.
    """
    if precision != "int8":
        return prepare_for_cpu(weights, CPU_DTYPES[precision]), ()
    chosen, reasons = _chosen(weights)
    names, wider = dict(_named_layers(weights)), defaultdict[str, list[str]](list)
    for key, reason in reasons.items():
        wider[reason].append(names.get(key, "one outside the encoder's layers"))
    if len(reasons) == len(chosen):
        raise UnsupportedCheckpoint(
            f"dtype 'int8': no matrix of this model can be in eight-bit integers: {'; '.join(wider)}. Use auto."
        )
    for reason, layers in wider.items():
        log.warning("layers_not_in_int8", layers=layers, dtype=cpu_precision("auto"), reason=reason)
    encoder = prepare_for_cpu(weights, torch.float32, lambda dense: chosen[id(dense)])
    return encoder, tuple([name for layers in wider.values() for name in layers])


def plan_int8(weights: EncoderWeights, product: Callable[[Tensor, Tensor], Tensor]) -> Int8Plan:
    """The plan of an encoder's matrices in int8, measured on tokens by chance. product: as for `Int8Linear`."""
    return _planned(weights, product)[0]


def rounded_product(x: Tensor, weight: Tensor) -> Tensor:
    """A product of int8 matrices for a plan, on any processor: its sums may be rounded to 24 bits."""
    return (x.float() @ weight.float()).to(torch.int32)


def _chosen(weights: EncoderWeights) -> tuple[dict[int, Linear], Mapping[int, str]]:
    """By the id of each matrix its form, and the reason of each that is not in int8."""
    plan, compared = _planned(weights, torch._int_mm)
    chosen: dict[int, Linear] = {key: one.int8 for key, one in compared.items()}
    for key, dense in plan.unsuited.items():
        chosen[key] = _wider(dense)
    return chosen, plan.reasons


def _planned(
    weights: EncoderWeights, product: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Int8Plan, dict[int, "_Compared"]]:
    """The plan, and each matrix that can be in int8 beside that form."""
    sizes, unsuited, reasons = _sizes_of_inputs(weights), dict[int, Dense](), dict[int, str]()
    compared: dict[int, _Compared] = {}

    def linear(dense: Dense) -> Linear:
        try:
            compared[id(dense)] = _Compared(dense, Int8Linear(dense, sizes[id(dense)], product))
        except NoInt8 as error:
            reasons[id(dense)] = str(error)
            unsuited[id(dense)] = dense
            return make_linear(dense, torch.float32)
        return compared[id(dense)]

    _run_tokens(weights, linear, seed=1)
    for key, one in compared.items():
        if not one.loss() <= _MOST_LOST:
            unsuited[key] = one.dense
            reasons[key] = f"outputs would lose more than {_MOST_LOST} of what differs between tokens"
    return Int8Plan(sizes, reasons, unsuited), compared


def _wider(dense: Dense) -> Linear:
    return RoundedLinear(dense) if is_bfloat16_fast() else make_linear(dense, torch.float32)


class _Compared:
    """A `Linear` in float32 that keeps what its form in int8 would lose."""

    def __init__(self, dense: Dense, int8: Int8Linear) -> None:
        self.dense = dense
        self.int8 = int8
        self._exact = make_linear(dense, torch.float32)
        self._lost = self._spread = 0.0

    def loss(self) -> float:
        """The error of the outputs, relative to how far they are from their mean over tokens, which tells nothing."""
        return math.sqrt(self._lost / self._spread) if self._spread > 0 else 0.0

    def __call__(self, x: Tensor) -> Tensor:
        out = self._exact(x)
        self._compare(out, self.int8(x))
        return out

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        none = torch.zeros_like(residual)
        out = self._exact.plus(x, none)
        self._compare(out, self.int8.plus(x, none))
        return out.add_(residual)

    def _compare(self, exact: Tensor, ours: Tensor) -> None:
        self._lost += float((ours - exact).square().sum())
        self._spread += float((exact - exact.mean(dim=0)).square().sum())


class _Measured:
    """A `Linear` that keeps the squares of its inputs."""

    def __init__(self, dense: Dense) -> None:
        self._linear = make_linear(dense, torch.float32)
        self.squares = torch.zeros(dense.weight.shape[1])

    def __call__(self, x: Tensor) -> Tensor:
        self.squares += x.square().sum(dim=0)
        return self._linear(x)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        self.squares += x.square().sum(dim=0)
        return self._linear.plus(x, residual)


def _sizes_of_inputs(weights: EncoderWeights) -> dict[int, Tensor]:
    """By the id of each matrix, how large each of its inputs is for tokens by chance."""
    measured: dict[int, _Measured] = {}

    def linear(dense: Dense) -> Linear:
        return measured.setdefault(id(dense), _Measured(dense))

    _run_tokens(weights, linear, seed=0)
    return {key: one.squares.sqrt() for key, one in measured.items()}


@torch.inference_mode()
def _run_tokens(weights: EncoderWeights, linear: Callable[[Dense], Linear], *, seed: int) -> None:
    """Run tokens by chance through the encoder in float32, the same for each load."""
    encoder = prepare_for_cpu(weights, torch.float32, linear)
    length = min(_LENGTH, weights.max_tokens or _LENGTH)
    ids = np.random.default_rng(seed).integers(0, weights.vocab_size, (_NUM_SEQUENCES, length), dtype=np.int32)
    batch = PackedBatch.of(list(ids), [TaskOptions("embed")] * _NUM_SEQUENCES)
    encode_on_cpu(encoder, batch, sort_by_length(batch.cu_seqlens), torch.float32)


def _named_layers(weights: EncoderWeights) -> Iterator[tuple[int, str]]:
    """The id and a name of each matrix of the layers."""
    for index, layer in enumerate(weights.layers):
        for field in fields(layer):
            if isinstance(getattr(layer, field.name), Dense):
                yield id(getattr(layer, field.name)), f"{index} {field.name}"
