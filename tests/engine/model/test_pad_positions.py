"""Positions beside pad tokens are those of transformers; without one there is nothing to compute."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings

from penstock.engine.errors import CheckpointError
from penstock.engine.gpu.choice import AttentionKernel
from penstock.engine.gpu.inputs import describe, exact_shape, views
from penstock.engine.model.positions import pad_positions, with_pad_row
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
