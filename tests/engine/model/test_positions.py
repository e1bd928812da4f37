"""Positions beside pad tokens, and rows of the relative embeddings, are those of transformers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.deberta_v2 import modeling_deberta_v2
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings

from penstock.engine.errors import CheckpointError
from penstock.engine.gpu.choice import AttentionKernel
from penstock.engine.gpu.inputs import describe, exact_shape, views
from penstock.engine.model.positions import pad_positions, relative_rows, relative_span, with_pad_row
from penstock.engine.model.weights import Embeddings, Norm
from tests.engine.helpers import pack

ROWS = 32
NORM = Norm(torch.ones(1), None, 1e-5)
THEIRS: Any = RobertaEmbeddings.create_position_ids_from_input_ids


def embeddings_of(pad_token: int) -> Embeddings:
    """The value of each row of the table is its place in the checkpoint's table."""
    table = with_pad_row(torch.arange(ROWS)[:, None], pad_token)
    return Embeddings(torch.empty(0), table, None, NORM, pad_token)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=20), min_size=1, max_size=5), st.integers(0, 3))
def test_positions_are_those_of_transformers(sequences: list[list[int]], pad_token: int) -> None:
    batch, embeddings = pack([np.array(ids, np.int32) for ids in sequences]), embeddings_of(pad_token)
    expected = [row for ids in sequences for row in THEIRS(torch.tensor([ids]), pad_token)[0].tolist()]
    positions = pad_positions(batch, embeddings)
    assert (positions is None) == all(pad_token not in ids for ids in sequences)
    shape = exact_shape(batch, AttentionKernel.PACKED_64)
    values = np.full(shape.num_values, -7, np.int32)
    describe(batch, shape, values, positions)  # of the places, where there are none
    places = views(torch.from_numpy(values), shape).positions
    assert embeddings.positions is not None
    assert embeddings.positions[places, 0].tolist() == expected


def test_other_families_number_every_token() -> None:
    embeddings = replace(embeddings_of(1), pad_token=None)
    assert pad_positions(pack([np.array([1, 1], np.int32)]), embeddings) is None


@pytest.mark.parametrize("pad_token", [-1, ROWS - 1, ROWS])
def test_a_pad_token_outside_the_table_is_refused(pad_token: int) -> None:
    with pytest.raises(CheckpointError, match="no rows beyond that of the pad token"):
        with_pad_row(torch.zeros(ROWS, 1), pad_token)


TRANSFORMERS: Any = modeling_deberta_v2  # untyped
PUBLISHED = (256, 512)  # every published DeBERTa-v2 and v3
CONFIGS = (PUBLISHED, (-1, 512), (0, 64), (32, 128), (64, 512), (128, 512), (8, 24), (7, 40), (2, 16), (3, 16))


def by_query_and_key(rows: np.ndarray, length: int) -> Tensor:
    """[length, length]: the row of each query and key."""
    reach = (len(rows) + 1) // 2
    position = np.arange(length)
    return torch.from_numpy(rows[position[:, None] - position[None, :] + reach - 1]).long()


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("length", [1, 2, 65, 512, 1100])
def test_rows_of_distances_are_those_of_transformers(config: tuple[int, int], length: int) -> None:
    buckets, positions = config
    tokens = torch.empty(length, 1)
    relative = TRANSFORMERS.build_relative_position(tokens, tokens, buckets, positions)[0]
    span = relative_span(buckets, positions)
    content_to_position = torch.clamp(relative + span, 0, 2 * span - 1)
    position_to_content = torch.clamp(-relative + span, 0, 2 * span - 1).T  # by key and query, as it gathers them
    ours = by_query_and_key(relative_rows(length, buckets, positions), length)
    assert torch.equal(ours, content_to_position)
    assert torch.equal(ours, position_to_content)


@given(buckets=st.integers(2, 300), extra=st.integers(0, 300), reach=st.integers(1, 400))
def test_nearer_distances_have_rows_of_their_own_and_rows_never_go_back(buckets: int, extra: int, reach: int) -> None:
    positions = buckets // 2 + 2 + extra
    rows = relative_rows(reach, buckets, positions)
    near = min(reach, buckets // 2) - 1
    assert (np.diff(rows) >= 0).all()
    assert (np.diff(rows[reach - 1 - near : reach + near]) == 1).all()
    assert rows.min() >= 0
    assert rows.max() < 2 * buckets
    assert rows[reach - 1] == buckets


@given(small=st.integers(1, 300), more=st.integers(0, 300))
def test_a_longer_table_holds_the_shorter(small: int, more: int) -> None:
    table = relative_rows(small + more, *PUBLISHED)
    assert np.array_equal(table[more : len(table) - more], relative_rows(small, *PUBLISHED))


@pytest.mark.parametrize(("reach", "buckets", "positions"), [(0, 256, 512), (20, 1, 512), (600, 256, 129)])
def test_what_has_no_rows_is_refused(reach: int, buckets: int, positions: int) -> None:
    with pytest.raises(ValueError, match="reach"):
        relative_rows(reach, buckets, positions)


@pytest.mark.parametrize("terms", [("c2p", "p2c"), ("c2p",), ("p2c",)])
def test_one_row_serves_both_terms_of_transformers_attention(terms: tuple[str, ...]) -> None:
    """softmax(scale (q k + q kr + k qr)) v with one table, in float64, is transformers' attention."""
    heads, head_dim, length, buckets, positions = 2, 8, 90, 16, 40
    config = TRANSFORMERS.DebertaV2Config(
        hidden_size=heads * head_dim,
        num_attention_heads=heads,
        relative_attention=True,
        pos_att_type=list(terms),
        position_buckets=buckets,
        max_relative_positions=positions,
        share_att_key=True,
    )
    torch.manual_seed(0)
    module = TRANSFORMERS.DisentangledSelfAttention(config).double().eval()
    hidden = torch.randn(1, length, heads * head_dim, dtype=torch.float64)
    embeddings = torch.randn(2 * buckets, heads * head_dim, dtype=torch.float64)
    with torch.no_grad():
        expected = module(hidden, torch.ones(1, 1, length, length), rel_embeddings=embeddings)[0][0]

        def split(projection: torch.nn.Module, rows: Tensor) -> Tensor:
            projected: Tensor = projection(rows)
            return projected.view(-1, heads, head_dim).transpose(0, 1)

        query, key, value = (
            split(projection, hidden[0]) for projection in (module.query_proj, module.key_proj, module.value_proj)
        )
        rows = by_query_and_key(relative_rows(length, buckets, positions), length).expand(heads, length, length)
        scores = query @ key.mT
        if "c2p" in terms:
            scores += (query @ split(module.key_proj, embeddings).mT).gather(2, rows)
        if "p2c" in terms:
            scores += (split(module.query_proj, embeddings) @ key.mT).gather(1, rows)
        weights = torch.softmax(scores / (head_dim * (1 + len(terms))) ** 0.5, dim=2)
        ours = (weights @ value).transpose(0, 1).reshape(length, heads * head_dim)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-7)  # transformers' scale is a float32
