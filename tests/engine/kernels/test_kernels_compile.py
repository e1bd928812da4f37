"""Every kernel compiles for every device and type we support, within its registers. No GPU is needed."""

import re
import sys
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from penstock.engine.errors import UnsupportedDevice
from penstock.engine.kernels import (
    activation,
    candidates,
    chain_lstm,
    epilogues,
    lstm,
    mid_product,
    packed_attention,
    paged_attention,
    pool,
    short_product,
)
from penstock.engine.kernels.library import OPTIONS, kernel, row_geometry, source_text
from tests.engine.kernels.nvrtc import Entry, assemble, compile_ptx

pytestmark = pytest.mark.slow

SOURCES = sorted(
    Path(file.name).stem for file in resources.files("penstock.engine.kernels").iterdir() if file.name.endswith(".cu")
)
DTYPES = (torch.float16, torch.bfloat16)
ARCHITECTURES = ("80", "89", "90")
HOPPER = {  # sources for sm_90a alone
    "mid_product",
    "wide_product",
    "long_attention",
    "long_disentangled",
    "int8_product",
    "int8_blocks",
}
READ_WEIGHTS_FIRST = (
    "residual_norm",
    "int8_norm",
    "int8_rows",
    "inner_norm",
    "embed_norm",
    "split_norm",
    "short_product",
    "mid_product",
    "short_lstm",
    "chain_lstm",
)  # entries that may read before they wait: no kernel writes weights
HIDDEN_SIZES = (8, 72, 264, 768, 1000, 1024, 1032, 2048, 4096, 6144, 8192)


def ptx_of(source: str, dtype: torch.dtype, arch: str) -> bytes:
    """Compiled once for all tests. What is for sm_80 is the same text for sm_89: see the test of it."""
    return compiled_once(source, dtype, "80" if arch == "89" else arch)


@cache
def compiled_once(source: str, dtype: torch.dtype, arch: str) -> bytes:
    return compile_ptx(source_text(source, dtype), arch, OPTIONS)


@cache
def entries_of(source: str, dtype: torch.dtype, arch: str) -> list[Entry]:
    return assemble(ptx_of(source, dtype, arch), arch)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("source", "arch"),
    [(source, arch) for source in SOURCES for arch in (("90a",) if source in HOPPER else ARCHITECTURES)],
)
def test_compiles_without_spills(
    source: str, dtype: torch.dtype, arch: str, record_property: Callable[[str, object], None]
) -> None:
    entries = entries_of(source, dtype, arch)
    assert entries
    for entry in entries:
        record_property(entry.name, entry.registers)
        print(f"sm_{arch} {dtype} {entry.name}: {entry.registers} registers")
    assert {entry.name: entry.spill_bytes for entry in entries if entry.spill_bytes} == {}


def test_sources_distinguish_hopper_from_older_devices_alone() -> None:
    texts = [source_text(source, torch.float16) for source in SOURCES]
    assert {test for text in texts for test in re.findall(r".*__CUDA_ARCH.*", text)} == {"#if __CUDA_ARCH__ >= 900"}
    smallest = source_text("greedy_step", torch.float16)
    of_80, of_89 = (compile_ptx(smallest, arch, OPTIONS) for arch in ("80", "89"))
    assert of_80.replace(b"sm_80", b"sm_89") == of_89


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("source", "epilogue"),
    [
        *(
            (source, epilogue)
            for source in ("wide_product", "mid_product")
            for epilogue in (
                epilogues.activated("gelu", is_gated=True),
                *(f"Turned<{dim}>" for dim in epilogues.TURNED_DIMS),
            )
        ),
        *(("int8_product", f"Blocks<{epilogues.activated(kind)}>") for kind in activation.KINDS),
    ],
)
def test_every_epilogue_compiles_without_spills(source: str, epilogue: str, dtype: torch.dtype) -> None:
    text = f"#define ACTIVATION {epilogue}\n{source_text(source, dtype)}"
    entries = assemble(compile_ptx(text, "90a", OPTIONS), "90a")
    assert entries
    assert {entry.name: entry.spill_bytes for entry in entries if entry.spill_bytes} == {}


@pytest.mark.parametrize(
    ("source", "launched"),
    [
        *[
            ("residual_norm", {f"{name}_{row_geometry(1, hidden, 132).entry}" for hidden in HIDDEN_SIZES})
            for name in ("residual_norm", "inner_norm")
        ],
        ("residual_norm", {"split_norm_w4_v1"} | {f"split_norm_w8_v{vectors}" for vectors in range(1, 5)}),
        ("short_product", {f"short_product_{tile.rows}x{tile.columns}" for tile in short_product.TILES}),
        ("mid_product", {f"mid_product_{tile.groups}" for tile in mid_product.TILES}),
        ("embed_norm", {f"embed_norm_{row_geometry(1, hidden, 132).entry}" for hidden in HIDDEN_SIZES}),
        ("activation", {f"{name}_{kind}" for name in ("bias_activation", "gated") for kind in activation.KINDS}),
        ("pool", {f"pool_{kind}" for kind in pool.KINDS}),
        ("rotate", {f"rotate_{lanes}" for lanes in (2, 4, 8, 16)}),
        *[
            (source, {f"{source}_{dim}_{queries}" for dim in (32, 64, 128) for queries in packed_attention.QUERIES})
            for source in ("packed_attention", "biased_attention", "windowed_attention")
        ],
        ("long_attention", {f"long_attention_{form}" for form in ("64_128", "64_192", "128_128")}),
        ("long_attention", {f"causal_attention_{form}" for form in ("64_128", "128_128")}),
        ("long_disentangled", {"long_disentangled"}),
        *[
            ("int8_rows", {f"{name}_{row_geometry(1, hidden, 132).entry}" for hidden in HIDDEN_SIZES})
            for name in ("int8_rows", "int8_norm")
        ],
        *[(source, {source}) for source in ("int8_product", "int8_blocks")],
        ("greedy_step", {"greedy_step"}),
        ("lstm", {"lstm_begin", "lstm_step"}),
        ("short_lstm", {f"short_lstm_{rows}" for rows in lstm.SHORT_TILES}),
        ("chain_lstm", {f"chain_lstm_{t}_{h}" for t in chain_lstm.TILES for h in chain_lstm.HIDDEN_SIZES}),
        ("paged_attention", {f"paged_attention_{size}" for size in (32, 64, 128) if paged_attention.supports(size)}),
        ("candidates", {f"candidates_{size}" for size in candidates.SIZES}),
    ],
)
def test_entry_points_that_are_launched_exist(source: str, launched: set[str]) -> None:
    assert launched <= {entry.name for entry in entries_of(source, torch.float16, "90a" if source in HOPPER else "90")}


def test_what_pooling_takes_of_shared_memory_for_itself() -> None:
    entries = entries_of("pool", torch.float16, "90")
    assert {entry.shared_bytes for entry in entries} == {128}  # at a hidden size of 8,192 it is what is over 48 KiB


def test_rows_fit_their_threads() -> None:
    for hidden in range(8, 8193, 8):
        geometry = row_geometry(5, hidden, 132)
        warps, vectors = (int(part[1:]) for part in geometry.entry.split("_"))
        assert 8 * 32 * warps * (vectors - 1) < hidden <= 8 * 32 * warps * vectors
        assert geometry.grid[0] * geometry.block[0] // (32 * warps) >= 5


def test_grids_fill_the_device_with_as_many_blocks_as_the_kernels_are_compiled_for() -> None:
    text = (resources.files("penstock.engine.kernels") / "common.cuh").read_text("utf-8")
    compiled_for = {f"w{w}_v{v}": int(blocks) for w, v, blocks in re.findall(r"ENTRY\((\d), (\d), (\d)\)", text)}
    launched = {}
    for hidden in HIDDEN_SIZES:
        geometry = row_geometry(1_000_000, hidden, 132)
        launched[geometry.entry] = geometry.grid[0] / 132
    assert launched == compiled_for


def test_blocks_walk_over_the_rows_that_do_not_fit_at_once() -> None:
    few, many = (row_geometry(rows, 768, 132) for rows in (1000, 1_000_000))
    assert few.grid == (250,)
    assert many == row_geometry(20_000, 768, 132)
    assert many.grid == (132 * 3,)


@pytest.mark.parametrize("hidden", [0, 4, 12, 8200])
def test_hidden_sizes_without_a_kernel_are_refused(hidden: int) -> None:
    with pytest.raises(ValueError, match=f"hidden size {hidden}"):
        row_geometry(5, hidden, 132)


def test_without_cupy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    on_device: Any = SimpleNamespace(dtype=torch.float16, device=torch.device("cuda", 0))
    monkeypatch.setitem(sys.modules, "cupy", None)  # what an import of a missing package finds
    with pytest.raises(UnsupportedDevice, match=r"pip install 'penstock\[gpu\]'"):
        kernel("residual_norm", "residual_norm_w1_v3", on_device)


@pytest.mark.parametrize("source", SOURCES)
def test_every_kernel_waits_for_the_one_before(source: str) -> None:
    """All are launched early (launch.py): one that did not wait would read what is still being written."""
    ptx = ptx_of(source, torch.float16, "90a" if source in HOPPER else "90").decode()
    entries = {part.split("(")[0].strip(): part for part in ptx.split(".entry ")[1:]}
    assert entries
    for name, text in entries.items():
        begin, waits, _ = text.partition("griddepcontrol.wait")
        assert waits, name
        assert not re.search(r"\b(st\.global|atom|red)\b", begin), name
        if not name.startswith(READ_WEIGHTS_FIRST):
            assert not re.search(r"\b(ld\.(volatile\.)?global|cp\.async)\b", begin), name
