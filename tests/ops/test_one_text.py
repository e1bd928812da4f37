"""The answer to one text, as a terminal shows it."""

import numpy as np
import pytest
from rich.table import Table

from penstock.ops.cli.jobs.one_text import as_text
from penstock.producer.wire.messages import Vector
from penstock.producer.wire.vector_tables import SparseVector, TextVectors


@pytest.mark.parametrize(
    ("vector", "shown"),
    [
        (np.array([0.5, -1], np.float32), "\\[0.5000, -1.0000]  2 dimensions"),
        (np.array([12, -128], np.int8), "\\[12, -128]  2 bytes"),
        (np.arange(7, dtype=np.float32), "\\[0.0000, 1.0000, 2.0000, 3.0000, 4.0000, 5.0000, …]  7 dimensions"),
        (np.arange(7, dtype=np.uint8), "\\[0, 1, 2, 3, 4, 5, …]  7 bytes"),
    ],
)
def test_vectors_are_shown_by_their_first_numbers_and_quantised_ones_as_the_bytes_that_they_are(
    vector: Vector, shown: str
) -> None:
    assert as_text(vector) == shown


def test_sparse_vectors_are_shown_by_their_largest_weights_and_vectors_of_tokens_by_their_number() -> None:
    sparse = SparseVector(np.array([3, 7], np.uint32), np.array([0.5, 1.25], np.float32))
    table = as_text(sparse)
    assert isinstance(table, Table)
    assert [list(column.cells) for column in table.columns] == [["7", "3"], ["1.2500", "0.5000"]]
    assert as_text(np.zeros((5, 128), np.float32)) == "5 vectors of 128 dimensions"
    assert as_text(TextVectors(np.zeros(2, np.float32), np.zeros((5, 3), np.float32), sparse)).endswith("2 dimensions")  # type: ignore[union-attr]  # text
