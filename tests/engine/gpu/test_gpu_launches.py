"""Kernel launches: attributes set on the device, and limits of a grid, with a fake of the driver."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from penstock.engine.errors import UnsupportedDevice
from penstock.engine.kernels import hopper, library, pool, short_attention
from penstock.engine.kernels.library import Kernel


class Entry:
    """A cupy.RawKernel that takes `shared_size_bytes` of shared memory for itself."""

    kernel = SimpleNamespace(ptr=1)

    def __init__(self, shared_size_bytes: int) -> None:
        self.shared_size_bytes = shared_size_bytes
        self.asked: list[int] = []

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "max_dynamic_shared_size_bytes":
            self.asked.append(value)
        else:
            super().__setattr__(name, value)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """One recorded launch: function, grid, block, arguments, shared bytes, stream, capability."""
    launched: list[tuple[Any, ...]] = []
    monkeypatch.setattr(library, "launch", lambda *arguments: launched.append(arguments))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 70 + device, raising=False)
    return launched


@pytest.fixture(autouse=True)
def current(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The thread's current device, last."""
    devices = [0]

    @contextmanager
    def using(device: int) -> Iterator[None]:
        devices.append(device)
        yield
        devices.pop()

    monkeypatch.setattr(torch.cuda, "device", using)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: devices[-1])
    return devices


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on the CPU pass for tensors on a device."""
    for wrapper in (pool, short_attention):
        monkeypatch.setattr(wrapper, "pointer", lambda name, tensor, dtype, shape: tensor.data_ptr())


def test_a_kernel_asks_once_for_shared_memory_beyond_48_kib_its_own_included(launches: list[tuple[Any, ...]]) -> None:
    entry = Entry(128)
    kernel = Kernel(entry, 0)
    for shared_bytes in (1000, 48 * 1024 - 128):
        kernel((1,), (32,), (), shared_bytes)
    assert entry.asked == []
    for shared_bytes in (48 * 1024 - 127, 48 * 1024, 40_000, 48 * 1024):
        kernel((1,), (32,), (), shared_bytes)
    assert entry.asked == [48 * 1024 - 127, 48 * 1024]
    assert [launch[4] for launch in launches] == [1000, 49_024, 49_025, 49_152, 40_000, 49_152]


def test_a_kernel_is_loaded_and_launched_on_its_tensors_device(
    monkeypatch: pytest.MonkeyPatch, launches: list[tuple[Any, ...]], current: list[int]
) -> None:
    used: list[tuple[str, int]] = []

    class Recorded:
        shared_size_bytes = 0

        @property
        def kernel(self) -> Any:
            used.append(("load", current[-1]))
            return SimpleNamespace(ptr=1)

        def __setattr__(self, name: str, value: Any) -> None:
            assert name == "max_dynamic_shared_size_bytes"
            used.append(("shared memory", current[-1]))

    module = SimpleNamespace(get_function=lambda entry: Recorded())
    monkeypatch.setattr(library, "_module", lambda source, dtype: module)
    monkeypatch.setattr(library, "launch", lambda *arguments: used.append(("launch", current[-1])))
    for index in (1, 0, 1):
        operand: Any = SimpleNamespace(dtype=torch.float16, device=torch.device("cuda", index))
        library.kernel("fake", "entry", operand)((1,), (32,), (), 50_000)
    one, other = ([(event, device) for event in ("load", "shared memory", "launch")] for device in (1, 0))
    assert used == [*one, *other, ("launch", 1)]
    assert current == [0]


def test_a_tensor_on_no_device_is_refused() -> None:
    with pytest.raises(ValueError, match="not on cpu"):
        library.kernel("pool", "pool_mean", torch.zeros(1, dtype=torch.float16))


@pytest.mark.parametrize("hidden", [768, 8160, 8168, 8192])
def test_rows_of_any_width_are_pooled_in_shared_memory_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, unchecked: None, launches: list[tuple[Any, ...]], hidden: int
) -> None:
    entry = Entry(128)  # as ptxas says of it (test_kernels_compile.py)
    monkeypatch.setattr(pool, "kernel", lambda source, name, dtype: Kernel(entry, 0))
    states, out = torch.zeros(3, hidden, dtype=torch.float16), torch.zeros(1, hidden)
    pool.pool(out, states, torch.tensor([0, 3], dtype=torch.int32), "mean", normalize=True)
    ((*_, shared_bytes, _, _),) = launches
    assert entry.asked == ([shared_bytes] if shared_bytes + 128 > 48 * 1024 else [])


@pytest.mark.parametrize("num_ctas", [65_535, 65_536])
def test_short_attention_refuses_more_ctas_than_a_grid_has(
    monkeypatch: pytest.MonkeyPatch, unchecked: None, launches: list[tuple[Any, ...]], num_ctas: int
) -> None:
    monkeypatch.setattr(short_attention, "kernel", lambda source, name, dtype: Kernel(Entry(0), 0))
    qkv, out = torch.zeros(4, 768, dtype=torch.float16), torch.zeros(4, 256, dtype=torch.float16)
    plan = torch.from_numpy(np.zeros((8 * num_ctas, 2), np.int32))
    if num_ctas > 65_535:
        with pytest.raises(ValueError, match="at most 524280 rows, not 524288"):
            short_attention.short_attention(out, qkv, plan, 4, 0.125)
    else:
        short_attention.short_attention(out, qkv, plan, 4, 0.125)
        assert launches[0][1] == (4, 65_535)


class Nvrtc:
    """CuPy's binding of the compiler; what it makes cannot be loaded."""

    NVRTCError = RuntimeError
    createProgram = compileProgram = destroyProgram = staticmethod(lambda *arguments: None)  # CuPy's names
    getCUBIN = staticmethod(lambda program: b"no cubin")  # as above


def test_a_hopper_kernel_that_is_not_loaded_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> Any:
        assert Path(path).read_bytes() == b"no cubin\0"
        raise RuntimeError("CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid")

    modules = {
        "cupy": SimpleNamespace(RawModule=refuse),
        "cupy.cuda": SimpleNamespace(nvrtc=Nvrtc),
        "cupy._core.core": SimpleNamespace(assemble_cupy_compiler_options=lambda options: options),
    }
    monkeypatch.setattr(hopper, "import_module", modules.__getitem__)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.raises(UnsupportedDevice, match="wide_product was not compiled and loaded: CUDA_ERROR_INVALID_IMAGE"):
        hopper.hopper_kernel("wide_product", "wide_product", torch.float16, "Gelu", 0)
    with pytest.raises(ValueError, match="float32"):
        hopper.hopper_kernel("wide_product", "wide_product", torch.float32, "Gelu", 0)
