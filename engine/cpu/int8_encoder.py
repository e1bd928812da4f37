"""An encoder on a CPU in a precision by its name; in int8, with inputs measured and layers left out where it must."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import structlog
import torch
from torch import Tensor

from penstock.engine.cpu.int8_linear import Int8Linear, NoInt8, require_int8_products
from penstock.engine.cpu.linear import Linear, make_linear
from penstock.engine.cpu.ops import CPU_DTYPES, cpu_precision, encode_on_cpu, prepare_for_cpu
from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.model.layout import sort_by_length
from penstock.engine.model.weights import Dense, Encoder, EncoderWeights
from penstock.engine.types import PackedBatch, TaskOptions

log = structlog.get_logger("penstock.engine")

_NUM_SEQUENCES, _LENGTH = 16, 16


def encoder_precision(dtype: str) -> str:
    """`cpu_precision` of a packed encoder, which can also be "int8". Raises UnsupportedDevice."""
    if dtype != "int8":
        return cpu_precision(dtype)
    require_int8_products()
    return dtype


def prepare_in(precision: str, weights: EncoderWeights) -> Encoder[Linear]:
    """The encoder in a precision of `CPU_DTYPES`. In "int8" a matrix that cannot be, stays float32, and is logged.

    Raises UnsupportedCheckpoint where none can be.
    """
    if precision != "int8":
        return prepare_for_cpu(weights, CPU_DTYPES[precision])
    names, sizes = dict(_named_layers(weights)), _sizes_of_inputs(weights)
    unsuited = defaultdict[str, list[str]](list)

    def linear(dense: Dense) -> Linear:
        try:
            return Int8Linear(dense, sizes[id(dense)])
        except NoInt8 as error:
            unsuited[str(error)].append(names.get(id(dense), "one outside the encoder's layers"))
            return make_linear(dense, torch.float32)

    encoder = prepare_for_cpu(weights, torch.float32, linear)
    if sum(map(len, unsuited.values())) == len(sizes):
        raise UnsupportedCheckpoint(
            f"dtype 'int8': no matrix of this model can be in eight-bit integers: {'; '.join(unsuited)}. Use auto."
        )
    for reason, layers in unsuited.items():
        log.warning("layers_in_float32", layers=layers, reason=reason)
    return encoder


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


@torch.inference_mode()
def _sizes_of_inputs(weights: EncoderWeights) -> dict[int, Tensor]:
    """By the id of each matrix, how large each of its inputs is for tokens by chance, the same for each load."""
    measured: dict[int, _Measured] = {}

    def linear(dense: Dense) -> Linear:
        return measured.setdefault(id(dense), _Measured(dense))

    encoder = prepare_for_cpu(weights, torch.float32, linear)
    length = min(_LENGTH, weights.max_tokens or _LENGTH)
    ids = np.random.default_rng(0).integers(0, weights.vocab_size, (_NUM_SEQUENCES, length), dtype=np.int32)
    batch = PackedBatch.of(list(ids), [TaskOptions("embed")] * _NUM_SEQUENCES)
    encode_on_cpu(encoder, batch, sort_by_length(batch.cu_seqlens), torch.float32)
    return {key: one.squares.sqrt() for key, one in measured.items()}


def _named_layers(weights: EncoderWeights) -> Iterator[tuple[int, str]]:
    """The id and a name of each matrix of the layers."""
    for index, layer in enumerate(weights.layers):
        for field in fields(layer):
            if isinstance(getattr(layer, field.name), Dense):
                yield id(getattr(layer, field.name)), f"{index} {field.name}"
