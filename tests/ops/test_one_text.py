"""What a terminal shows of the answer to one text."""

import numpy as np
import pytest

from penstock.ops.cli.jobs.one_text import as_text
from penstock.producer.wire.messages import Vector


@pytest.mark.parametrize(
    ("vector", "shown"),
    [
        (np.array([0.5, -1], np.float32), "\\[0.5000, -1.0000]  2 dimensions"),
        (np.array([12, -128], np.int8), "\\[12, -128]  2 bytes of signs"),
        (np.arange(7, dtype=np.uint8), "\\[0, 1, 2, 3, 4, 5, …]  7 bytes of signs"),
    ],
)
def test_signs_are_shown_as_the_bytes_that_they_are(vector: Vector, shown: str) -> None:
    assert as_text(vector) == shown
