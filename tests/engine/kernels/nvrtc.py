"""The CUDA compilers without a GPU: source to PTX by NVRTC, PTX to machine code by ptxas, from their wheels."""

import ctypes
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

_ENTRY = re.compile(
    r"Compiling entry function '(\w+)'.*?"
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?"
    r"Used (\d+) registers([^\n]*)",
    re.DOTALL,
)
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class Entry:
    """Resources that ptxas reports for a kernel."""

    name: str
    registers: int
    spill_bytes: int
    shared_bytes: int  # of the kernel's own arrays, beside what a launch asks for


class CompileError(Exception):
    """The compiler's log."""


def assemble(ptx: bytes, arch: str) -> list[Entry]:
    """Compile PTX for sm_`arch`, which may be newer than the PTX's own. Raises CompileError for errors."""
    command = [str(_wheel("cuda_nvcc") / "bin" / "ptxas"), "--verbose", f"--gpu-name=sm_{arch}"]
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "kernel.ptx"
        source.write_bytes(ptx)
        command += [str(source), "--output-file", str(source.with_suffix(".cubin"))]
        ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode != 0:
        raise CompileError(ran.stderr)
    return [
        Entry(name, int(registers), int(stores) + int(loads), sum(map(int, _SHARED.findall(more))))
        for name, _, stores, loads, registers, more in _ENTRY.findall(ran.stderr)
    ]


def compile_ptx(source: str, arch: str, options: tuple[str, ...]) -> bytes:
    """PTX for compute_`arch`. Raises CompileError for errors and warnings."""
    nvrtc = _nvrtc()
    include = f"-I{_wheel('cuda_runtime') / 'include'}"
    encoded = [option.encode() for option in (*options, "-ftz=true", f"-arch=compute_{arch}", include)]
    program = ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode()
        if failed or log.strip():
            raise CompileError(log)
        return _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(size_of: Callable[..., int], read: Callable[..., int], program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(size_of(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(read(program, buffer))
    return buffer.value


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"NVRTC returned {status}")


@cache
def _nvrtc() -> ctypes.CDLL:
    return ctypes.CDLL(str(next((_wheel("cuda_nvrtc") / "lib").glob("libnvrtc.so.*"))))


def _wheel(name: str) -> Path:
    spec = find_spec(f"nvidia.{name}") if find_spec("nvidia") else None
    if spec is None or not spec.submodule_search_locations:
        reason = f"needs the CUDA compiler wheels, here nvidia-{name.replace('_', '-')}-cu12 (extra: dev)"
        if os.environ.get("CI") == "true":  # a kernel that does not compile must not get in unseen
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return Path(next(iter(spec.submodule_search_locations)))
