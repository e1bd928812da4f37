"""BERT-base's products with their bias, activation or norm: the engine's, beside cuBLAS with a launch after it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from penstock.engine.gpu.attention import AttentionTables
from penstock.engine.gpu.ops import GpuDense, GpuOps
from penstock.engine.gpu.products import Products, short_split, short_tile
from penstock.engine.kernels.activation import bias_activation
from penstock.engine.kernels.residual_norm import residual_norm
from penstock.engine.model.weights import Norm
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.parts.kernels import normal, uploaded
from penstock.ops.bench.gpu.request_batches import pack

TOKENS = (32, 64, 96, 128, 192, 256, 512, 1024, 1280, 1536, 2048, 4096, 8192, 16_384)
_SETS = 24  # weights of a model's layers twice over: beyond the L2 cache, but for the smallest
_HIDDEN, _INTERMEDIATE, _EPS = 768, 3072, 1e-12
SHAPES = {  # width, depth, activation; a norm follows where there is none
    "to query, key and value": (3 * _HIDDEN, _HIDDEN, "identity"),
    "up, with GELU": (_INTERMEDIATE, _HIDDEN, "gelu"),
    "attention's output, with residual and norm": (_HIDDEN, _HIDDEN, None),
    "down, with residual and norm": (_HIDDEN, _INTERMEDIATE, None),
}


def run(bench: Bench) -> dict[str, Any]:
    """About 5 s. Microseconds of one product, in a graph with one launch for each set of weights."""
    device = torch.device("cuda")
    products = Products.on(device, torch.float16, _HIDDEN, {"gelu", "identity"})
    rows = []
    for name, (width, depth, activation) in SHAPES.items():
        weights = [normal(width, depth) * 0.02 for _ in range(_SETS)]
        for tokens in TOKENS:
            with bench.guarded(f"product {name}", f"{tokens} tokens"):
                ways = _ways(weights, tokens, activation, products)
                us = {way: bench.recorder.kernel_us(work, _SETS) for way, work in ways.items()}
                chosen = _chosen(tokens, width, depth, activation, products)
                rows.append({"product": name, "tokens": tokens, "chosen": chosen, "us": us})
    return {"rows": rows}


def _ways(
    weights: list[torch.Tensor], tokens: int, activation: str | None, products: Products
) -> dict[str, Callable[[int], object]]:
    width, depth = weights[0].shape
    x, out, residual = normal(tokens, depth), normal(tokens, width), normal(tokens, width)
    bias, gamma, beta = normal(width), normal(width), normal(width)
    norm = Norm(gamma, beta, _EPS)
    inputs = uploaded(pack([np.zeros(1, np.int32)]), x.device)  # products do not look at them
    kernels = GpuOps(inputs, AttentionTables(12, None, None), products)
    dense = [GpuDense(weight, weight.t(), bias, activation or "identity") for weight in weights]

    def separate(i: int) -> None:
        if activation == "identity":
            torch.addmm(bias, x, dense[i].weight_t, out=out)
            return
        torch.mm(x, dense[i].weight_t, out=out)
        if activation is None:
            residual_norm(out, out, bias, residual, gamma, beta, _EPS)
        else:
            bias_activation(out, bias, activation)

    def ours(i: int) -> None:
        if activation is None:
            kernels.project_add_norm(out, x, residual, dense[i], norm)
        else:
            kernels.project(out, x, dense[i])

    return {
        "cuBLAS alone": lambda i: torch.mm(x, dense[i].weight_t, out=out),
        "cuBLAS and what follows": separate,
        "ours": ours,
    }


def _chosen(tokens: int, width: int, depth: int, activation: str | None, products: Products) -> str:
    """The kernel that the engine takes."""
    if activation is None:
        return "cuBLAS" if short_split(tokens, width, depth) is None else "split_product"
    is_plain = activation == "identity"
    if not is_plain and short_tile(tokens, width, depth) is not None:
        return "short_product"
    return "wide_product" if products.is_wide(tokens, width, depth, is_plain=is_plain) else "cuBLAS"
