"""The tables of the long disentangled kernel, and what its launch refuses: no GPU needed."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.kernels import long_disentangled as long
from penstock.engine.model.positions import relative_rows

HOPPER = 227 << 10  # bytes of shared memory that a block can ask for
BOX = 64
TABLES = st.one_of(
    st.lists(st.integers(0, 9), min_size=1, max_size=400).filter(lambda rows: len(rows) % 2 == 1),
    st.builds(lambda reach: relative_rows(reach, 256, 512).tolist(), st.integers(1, 700)),
    st.builds(lambda reach: relative_rows(reach, 16, 512).tolist(), st.integers(1, 700)),
)


@given(TABLES)
def test_every_box_that_the_kernel_reads_has_the_embeddings_of_its_distances(rows: list[int]) -> None:
    """Box b is of distances 64 b - 63 to 64 b. A box beyond the table is the last that is within."""
    table, embeddings = torch.tensor(rows, dtype=torch.int32), 8.0 * torch.arange(512)[:, None]
    reach, found = (len(rows) + 1) // 2, long.by_distance(embeddings, table)
    assert len(found) % 2 == 1
    for box in range(-(reach // BOX) - 1, reach // BOX + 2):
        distances = np.arange(BOX * box - 63, BOX * box + 1)
        first = min(max(int(distances[0]) + len(found) // 2, 0), len(found) - BOX)
        inside = np.abs(distances) < reach
        assert found[first : first + BOX, 0][inside].tolist() == table[distances[inside] + reach - 1].tolist()


def test_far_distances_share_rows() -> None:
    table = torch.from_numpy(relative_rows(8192, 256, 512))
    assert len(long.by_distance(torch.zeros(512, 8), table)) < 2 * (512 + BOX)


@pytest.mark.parametrize(("capability", "is_hopper"), [((8, 9), False), ((9, 0), True), ((10, 0), False)])
def test_what_is_supported(capability: tuple[int, int], is_hopper: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert [d for d in (32, 64, 128) if long.supports(d, 0)] == ([64] if is_hopper else [])
    assert long.shared_bytes() <= HOPPER


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, "5 heads of 51.2"),
        ({"num_heads": 2}, "2 heads of 128"),
        ({"scale": 0.0}, "scale must be positive"),
        ({"kr": torch.zeros(128, 256, dtype=torch.float16)}, "128 distances: kr and qr have an odd number"),
        ({"kr": torch.zeros(125, 256, dtype=torch.float16)}, "125 distances: .* at least 127"),
        ({}, "on a CUDA device"),
    ],
)
def test_wrong_arguments_are_refused(changes: dict[str, object], message: str) -> None:
    launch: Callable[..., object] = long.long_disentangled
    arguments: dict[str, object] = {
        "out": torch.zeros(4, 256, dtype=torch.float16),
        "qkv": torch.zeros(4, 768, dtype=torch.float16),
        "plan": torch.zeros(8, 2, dtype=torch.int32),
        "num_heads": 4,
        "kr": torch.zeros(127, 256, dtype=torch.float16),
        "qr": torch.zeros(127, 256, dtype=torch.float16),
        "scale": 0.125,
    }
    with pytest.raises(ValueError, match=message):
        launch(**(arguments | changes))
