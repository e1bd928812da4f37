"""Tests that need a CUDA GPU: without one each is skipped, with one reason."""

import pytest
import torch


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip("no CUDA GPU here")
