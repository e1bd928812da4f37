"""Embeddings and their norm on a GPU."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.kernels.embed_norm import embed_norm
from penstock.engine.model.weights import Embeddings, Norm
from tests.gpu.references import (
    HALVES,
    HIDDEN_SIZES,
    ROWS,
    assert_as_exact_as_torch,
    exact_norm,
    exact_sum,
    norm_parameters,
    randn,
    replayed,
)

pytestmark = pytest.mark.gpu
EPS = 1e-12
VOCABULARY, POSITIONS, TYPES = 1009, 131, 3


def ids(rows: int, below: int, seed: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(0, below, (rows,), generator=generator, device="cuda", dtype=torch.int32)


def tables(hidden: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    sizes = (VOCABULARY, POSITIONS, TYPES)
    words, positions, types = (randn(size, hidden, dtype=dtype, seed=20 + i) for i, size in enumerate(sizes))
    return words, positions, types


def inputs(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    return ids(rows, VOCABULARY, 1), ids(rows, POSITIONS, 2), ids(rows, TYPES, 3)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("hidden", HIDDEN_SIZES)
@pytest.mark.parametrize("rows", ROWS)
def test_against_float64(rows: int, hidden: int, dtype: torch.dtype) -> None:
    words, position_table, type_table = tables(hidden, dtype)
    tokens, positions, types = inputs(rows)
    _, gamma, beta = norm_parameters(hidden, dtype)
    out = torch.empty(rows, hidden, dtype=dtype, device="cuda")
    embed_norm(out, tokens, positions, types, Embeddings(words, position_table, type_table, Norm(gamma, beta, EPS)))
    parts = [words[tokens], position_table[positions], type_table[types]]
    exact = exact_norm(exact_sum(*parts), gamma, beta, EPS)
    plain = F.layer_norm(parts[0] + parts[1] + parts[2], (hidden,), gamma, beta, EPS)
    assert_as_exact_as_torch(out, plain, exact)


@pytest.mark.parametrize("hidden", [384, 2048])
@pytest.mark.parametrize("has_positions", [False, True])
@pytest.mark.parametrize("types", ["none", "row 0", "each"])
@pytest.mark.parametrize("has_norm", [False, True])
def test_parts_may_be_missing(hidden: int, has_positions: bool, types: str, has_norm: bool) -> None:
    dtype = torch.bfloat16
    words, position_table, type_table = tables(hidden, dtype)
    tokens, positions, token_types = inputs(50)
    _, gamma, _ = norm_parameters(hidden, dtype)
    out = torch.empty(50, hidden, dtype=dtype, device="cuda")
    embed_norm(
        out,
        tokens,
        positions,
        token_types if types == "each" else None,
        Embeddings(
            words,
            position_table if has_positions else None,
            None if types == "none" else type_table,
            Norm(gamma, None, 1e-5) if has_norm else None,
        ),
    )
    parts = [words[tokens]]
    if has_positions:
        parts.append(position_table[positions])
    if types != "none":
        parts.append(type_table[token_types if types == "each" else torch.zeros_like(token_types)])
    exact, plain = exact_sum(*parts), sum(parts[1:], parts[0])
    if has_norm:
        exact, plain = exact_norm(exact, gamma, None, 1e-5), F.layer_norm(plain, (hidden,), gamma, None, 1e-5)
    assert_as_exact_as_torch(out, plain, exact)


def test_a_table_of_more_than_two_to_the_31_elements() -> None:
    hidden, vocabulary = 4096, 600_000
    words = torch.zeros(vocabulary, hidden, dtype=torch.float16, device="cuda")
    words[-1] = randn(hidden, dtype=torch.float16, seed=30)
    _, gamma, beta = norm_parameters(hidden, torch.float16)
    tokens = torch.tensor([vocabulary - 1, 0], dtype=torch.int32, device="cuda")
    out = torch.empty(2, hidden, dtype=torch.float16, device="cuda")
    embed_norm(out, tokens, torch.zeros_like(tokens), None, Embeddings(words, None, None, Norm(gamma, beta, EPS)))
    plain = F.layer_norm(words[tokens], (hidden,), gamma, beta, EPS)
    assert_as_exact_as_torch(out, plain, exact_norm(words[tokens], gamma, beta, EPS))
    assert torch.equal(out[1], beta)


def test_nan_stays_in_its_row() -> None:
    words, position_table, type_table = tables(768, torch.float16)
    tokens, positions, types = inputs(64)
    _, gamma, beta = norm_parameters(768, torch.float16)
    clean, poisoned = (torch.empty(64, 768, dtype=torch.float16, device="cuda") for _ in range(2))
    embed_norm(clean, tokens, positions, types, Embeddings(words, position_table, type_table, Norm(gamma, beta, EPS)))
    words[tokens[10]] = math.nan
    hit = tokens == tokens[10]
    embed_norm(
        poisoned, tokens, positions, types, Embeddings(words, position_table, type_table, Norm(gamma, beta, EPS))
    )
    assert poisoned[hit].isnan().all()
    assert torch.equal(poisoned[~hit], clean[~hit])


def test_in_a_graph_with_other_ids() -> None:
    words, position_table, type_table = tables(768, torch.float16)
    tokens, positions, types = inputs(64)
    _, gamma, beta = norm_parameters(768, torch.float16)
    out, expected = (torch.empty(64, 768, dtype=torch.float16, device="cuda") for _ in range(2))
    replayed(
        lambda: embed_norm(
            out, tokens, positions, types, Embeddings(words, position_table, type_table, Norm(gamma, beta, EPS))
        ),
        lambda: tokens.copy_(ids(64, VOCABULARY, 9)),
    )
    embed_norm(
        expected, tokens, positions, types, Embeddings(words, position_table, type_table, Norm(gamma, beta, EPS))
    )
    assert torch.equal(out, expected)


def test_ids_of_another_type_are_refused() -> None:
    words, position_table, _ = tables(64, torch.float16)
    tokens, positions, _ = inputs(8)
    _, gamma, beta = norm_parameters(64, torch.float16)
    out = torch.empty(8, 64, dtype=torch.float16, device="cuda")
    with pytest.raises(ValueError, match=r"token_ids must be torch\.int32"):
        embed_norm(out, tokens.long(), positions, None, Embeddings(words, position_table, None, Norm(gamma, beta, EPS)))
