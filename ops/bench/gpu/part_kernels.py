"""Each kernel alone, in GB/s against the measured copy, over buffers that together exceed the L2 cache."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.gpu.attention import AttentionTables, attend, prepare_long
from penstock.engine.gpu.choice import choose_kernel
from penstock.engine.gpu.inputs import Inputs, describe, exact_shape, views
from penstock.engine.kernels.activation import bias_activation
from penstock.engine.kernels.embed_norm import embed_norm
from penstock.engine.kernels.library import block_shared_bytes
from penstock.engine.kernels.pool import pool
from penstock.engine.kernels.residual_norm import residual_norm
from penstock.engine.kernels.rotate import rotate
from penstock.engine.model.weights import Embeddings, Heads, Norm, PlainAttention, RotaryAttention
from penstock.ops.bench.common.draws import Lengths, filling
from penstock.ops.bench.gpu.bench import Bench, pack
from penstock.ops.bench.gpu.contestants.packed_torch import flash_varlen
from penstock.ops.bench.gpu.timing import num_sets, once_ms

TOKENS = (1024, 4096, 16_384)
ATTENTION = ((1024, 2, 100), (16_384, 2, 100), (16_384, 5, 500), (16_384, 100, 2000))  # tokens, from which lengths
HIDDEN, INTERMEDIATE, HEADS, VOCAB = 768, 3072, 12, 30_522
_HEADS = Heads(HEADS, HEADS, HIDDEN // HEADS)
_EPS = 1e-12
_COPY_BYTES, _COPIES = 2 << 30, 12

WorkOn = Callable[[int], object]  # one launch on the i-th set of buffers


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel and its counterpart in torch. `num_bytes`: each input read once, each output written once."""

    num_bytes: int
    ours: WorkOn
    theirs: WorkOn
    sets: int


def run(bench: Bench) -> dict[str, Any]:
    """About 5 s."""
    ceiling = _copy_bytes_per_s()
    rows = []
    for name, make in KERNELS.items():
        for tokens in TOKENS:
            where = f"{name}, {tokens} tokens"
            with bench.guarded(f"kernel {name}", where):
                launch = make(tokens, bench.seed)
                us = bench.recorder.kernel_us(launch.ours, launch.sets)
                rows.append(
                    {
                        "kernel": name,
                        "tokens": tokens,
                        "bytes": launch.num_bytes,
                        "us": us,
                        "share_of_copy": launch.num_bytes / us * 1e6 / ceiling,
                        "torch_us": bench.recorder.kernel_us(launch.theirs, launch.sets),
                        "copy_us": bench.recorder.kernel_us(_copy(launch.num_bytes, launch.sets), launch.sets),
                    }
                )
    attention = []
    for tokens, low, high in ATTENTION:
        with bench.guarded("kernel attention", f"{tokens} tokens of {low}-{high}"):
            inputs = _planned(filling(tokens, low, high, bench.seed), torch.device("cuda"))
            launch = _attention(inputs)
            attention.append(
                {
                    "kernel": inputs.shape.kernel.value,
                    "tokens": tokens,
                    "lengths": f"{low}-{high}",
                    "sequences": inputs.shape.sequences,
                    "us": bench.recorder.kernel_us(launch.ours, launch.sets),
                    "flash_us": bench.recorder.kernel_us(launch.theirs, launch.sets),
                    "byte_floor_us": launch.num_bytes / ceiling * 1e6,
                }
            )
    return {"copy_bytes_per_s": ceiling, "hidden": HIDDEN, "rows": rows, "attention": attention}


def _copy_bytes_per_s() -> float:
    """Of a copy from device to device that dwarfs the caches; bytes read plus bytes written."""
    source = torch.randint(0, 256, (_COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    milliseconds = statistics.median(once_ms(lambda: target.copy_(source)) for _ in range(_COPIES))
    return 2 * _COPY_BYTES / milliseconds * 1e3


def _residual_norm(tokens: int, seed: int) -> Launch:
    num_bytes = 3 * tokens * HIDDEN * 2
    sets = num_sets(num_bytes)
    x, residual, out = (_normal(sets, tokens, HIDDEN) for _ in range(3))
    bias, weight, shift = (_normal(HIDDEN) for _ in range(3))
    return Launch(
        num_bytes,
        lambda i: residual_norm(out[i], x[i], bias, residual[i], Norm(weight, shift, _EPS)),
        lambda i: F.layer_norm(x[i] + residual[i], (HIDDEN,), weight, shift, _EPS),  # the bias is in torch's product
        sets,
    )


def _embed_norm(tokens: int, seed: int) -> Launch:
    lengths = filling(tokens, 2, 100, seed)
    ids = np.random.default_rng(seed).integers(0, VOCAB, tokens)
    tables = len(np.unique(ids)) + int(lengths.max()) + 1  # rows of the tables that are read
    num_bytes = (tables + tokens) * HIDDEN * 2 + 2 * 4 * tokens
    sets = num_sets(num_bytes)
    words, out = _normal(sets, VOCAB, HIDDEN), _normal(sets, tokens, HIDDEN)
    positions_table, types = _normal(512, HIDDEN), _normal(2, HIDDEN)
    weight, shift = _normal(HIDDEN), _normal(HIDDEN)
    token_ids = _int32(ids).repeat(sets, 1)
    positions = _int32(np.arange(tokens) - np.repeat(np.cumsum(lengths) - lengths, lengths)).repeat(sets, 1)

    def ours(i: int) -> None:
        tables = Embeddings(words[i], positions_table, types, Norm(weight, shift, _EPS))
        embed_norm(out[i], token_ids[i], positions[i], None, tables)

    def theirs(i: int) -> Tensor:
        hidden = F.embedding(token_ids[i], words[i]) + F.embedding(positions[i], positions_table) + types[0]
        return F.layer_norm(hidden, (HIDDEN,), weight, shift, _EPS)

    return Launch(num_bytes, ours, theirs, sets)


def _rotation(tokens: int, seed: int) -> Launch:
    heads, half = Heads(HEADS, HEADS, HIDDEN // HEADS), HIDDEN // HEADS // 2
    lengths = filling(tokens, 2, 100, seed)
    num_bytes = 2 * 2 * tokens * HIDDEN * 2 + 4 * tokens
    sets = num_sets(num_bytes)
    qkv, out = _normal(sets, tokens, 3 * HIDDEN), _normal(sets, tokens, 2 * HEADS, 2 * half)
    angles = torch.rand(int(lengths.max()), half, device="cuda")
    positions = _int32(np.arange(tokens) - np.repeat(np.cumsum(lengths) - lengths, lengths)).repeat(sets, 1)
    rotary = RotaryAttention(angles.cos(), angles.sin())

    def theirs(i: int) -> None:
        low, high = qkv[i, :, : 2 * HIDDEN].view(tokens, 2 * HEADS, 2 * half).float().chunk(2, dim=-1)
        cosines, sines = (table[positions[i]][:, None] for table in (rotary.cosines, rotary.sines))
        out[i, :, :, :half] = low * cosines - high * sines
        out[i, :, :, half:] = high * cosines + low * sines

    return Launch(num_bytes, lambda i: rotate(qkv[i], positions[i], heads, rotary), theirs, sets)


def _bias_gelu(tokens: int, seed: int) -> Launch:
    num_bytes = 2 * tokens * INTERMEDIATE * 2
    sets = num_sets(num_bytes)
    x, out = _normal(sets, tokens, INTERMEDIATE), _normal(sets, tokens, INTERMEDIATE)
    bias = _normal(INTERMEDIATE)  # also keeps x, which is changed in place again and again, from fading away
    return Launch(
        num_bytes,
        lambda i: bias_activation(x[i], bias, "gelu"),
        lambda i: torch.ops.aten.gelu.out(x[i], out=out[i]),
        sets,
    )


def _mean_pool(tokens: int, seed: int) -> Launch:
    lengths = filling(tokens, 2, 100, seed)
    num_bytes = (2 * tokens + 4 * len(lengths)) * HIDDEN
    sets = num_sets(num_bytes)
    hidden, out = _normal(sets, tokens, HIDDEN), torch.zeros(sets, len(lengths), HIDDEN, device="cuda")
    cu_seqlens = _int32(np.concatenate([[0], np.cumsum(lengths)]))
    owner = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)).cuda()
    counts = torch.from_numpy(lengths).cuda()[:, None].float()
    return Launch(
        num_bytes,
        lambda i: pool(out[i], hidden[i], cu_seqlens, "mean", False),
        lambda i: torch.zeros_like(out[i]).index_add_(0, owner, hidden[i].float()) / counts,
        sets,
    )


def _attention(inputs: Inputs) -> Launch:
    tokens = inputs.shape.rows
    num_bytes = 4 * tokens * HIDDEN * 2
    sets = num_sets(num_bytes)
    qkv, out = _normal(sets, tokens, 3 * HIDDEN), _normal(sets, tokens, HIDDEN)
    tables = AttentionTables(_HEADS, {}, None, {})
    return Launch(
        num_bytes,
        lambda i: attend(out[i], qkv[i], PlainAttention(), inputs, tables),
        lambda i: flash_varlen(qkv[i], inputs.cu_seqlens, inputs.shape.max_seqlen, HEADS),
        sets,
    )


def _planned(lengths: Lengths, device: torch.device) -> Inputs:
    """A batch as the engine's kernels take it, with the attention kernel that the engine chooses for heads of 64."""
    batch, attention = pack([np.zeros(length, np.int32) for length in lengths]), PlainAttention()
    kernel = choose_kernel(
        attention,
        _HEADS.dim,
        batch.max_seqlen,
        len(batch.token_ids),
        shared_bytes=block_shared_bytes(device),
        long=prepare_long([attention], _HEADS, torch.float16, device),
    )
    shape = exact_shape(batch, kernel)
    values = np.empty(shape.num_values, np.int32)
    describe(batch, shape, values)
    return views(torch.from_numpy(values).to(device), shape)


def _copy(num_bytes: int, sets: int) -> WorkOn:
    """A copy that moves as many bytes: as a kernel's pass, since the driver's own copies depend on odd sizes."""
    source, target = (torch.empty(sets, num_bytes // 8, dtype=torch.int32, device="cuda") for _ in range(2))
    source.random_()
    return lambda i: torch.neg(source[i], out=target[i])


def _normal(*size: int) -> Tensor:
    """Random numbers in half precision, on the device."""
    return torch.randn(*size, device="cuda", dtype=torch.float16)


def _int32(array: Any) -> Tensor:
    return torch.from_numpy(np.asarray(array, np.int32)).cuda()


KERNELS: dict[str, Callable[[int, int], Launch]] = {
    "bias + residual + LayerNorm": _residual_norm,
    "embedding + LayerNorm": _embed_norm,
    "mean pooling": _mean_pool,
    "bias + GELU": _bias_gelu,
    "rotation": _rotation,
}
