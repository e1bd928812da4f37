"""Choice of the device and of its precision."""

import os
import platform
from importlib.util import find_spec
from pathlib import Path

import structlog
import torch

from penstock.engine.errors import UnsupportedDevice
from penstock.engine.model.weights import EncoderWeights

log = structlog.get_logger("penstock.engine")

# By precision, the type of hidden states.
GPU_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.float16}
_OLDEST_CAPABILITY = (8, 0)
_INT8_CAPABILITY = (9, 0)


def choose_device(wanted: str, *, padded: bool = False) -> str:
    """ "cpu" or "cuda"; for "auto" a GPU if there is one. Raises UnsupportedDevice that names what is missing.

    The padded engine needs no CuPy and no recent GPU.
    """
    if wanted not in ("auto", "cpu", "cuda"):
        raise UnsupportedDevice(f"device {wanted!r} is not available; use auto, cpu or cuda.")
    if wanted == "cpu":
        return "cpu"
    missing = missing_for_gpu(padded)
    if wanted == "cuda" and missing is not None:
        raise UnsupportedDevice(f"device 'cuda' is not available: {missing}.")
    return "cuda" if missing is None else "cpu"


def choose_device_for(weights: EncoderWeights, wanted: str) -> str:
    """As `choose_device`, but "auto" takes the CPU for an encoder with a convolution, and logs that.

    Other models without GPU support (`gpu.support`) are rejected under "auto" too; `load_engine` may run them padded.
    """
    device = choose_device(wanted)
    if wanted == "auto" and device == "cuda" and weights.convolution is not None:
        log.warning("runs_on_cpu", reason="the convolution beside the first layer is implemented on the CPU only")
        return "cpu"
    return device


def missing_for_gpu(padded: bool = False) -> str | None:
    """The reason why the packed or padded engine cannot run on a GPU here, or None."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA GPU"
    if padded:
        return None
    if find_spec("cupy") is None:
        return "CuPy is not installed: pip install 'penstock[gpu]' (CUDA 12) or 'penstock[gpu-cuda13]' (CUDA 13)"
    capability = torch.cuda.get_device_capability()
    if capability < _OLDEST_CAPABILITY:
        return f"{device_name()} has compute capability {capability[0]}.{capability[1]}, and the kernels need 8.0"
    return None


def device_name() -> str:
    """The driver's name of the current GPU."""
    return torch.cuda.get_device_name()


def processor_name() -> str:
    """This processor and the number of cores that this process may use: the key of times measured here.

    It includes family and model numbers, for a virtual machine's model name may not tell generations apart.
    """
    cpu = _cpuinfo()
    name = cpu.get("model name") or platform.processor() or platform.machine()
    numbers = f" ({cpu['cpu family']}/{cpu['model']})" if {"cpu family", "model"} <= cpu.keys() else ""
    cores = len(os.sched_getaffinity(0))
    return f"{name}{numbers}, {cores} core{'s' if cores > 1 else ''}"


def is_bfloat16_fast() -> bool:
    """Whether this processor multiplies bfloat16 faster than float32: with AMX, or with AMD's AVX512-BF16.

    Intel's AVX512-BF16 alone, on a processor whose AMX a virtual machine hides, took 1.4 to 1.9 times as long as
    float32 (products of 16 to 480 rows). Without either, bfloat16 is emulated.
    """
    has_avx512 = bool(torch.cpu._is_avx512_bf16_supported())
    return bool(torch.cpu._is_amx_tile_supported()) or (has_avx512 and _cpuinfo().get("vendor_id") == "AuthenticAMD")


def multiplies_bfloat16() -> bool:
    """Whether oneDNN has bfloat16 products for this processor. torch's own depend on the rest of the batch."""
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return has_onednn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _cpuinfo() -> dict[str, str]:
    """The first processor's entry of /proc/cpuinfo; empty where there is none."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def gpu_precision(dtype: str, *, overflows_float16: bool = False) -> str:
    """The GPU's precision for `dtype`. overflows_float16: "auto" means bfloat16. Raises UnsupportedDevice."""
    precision = ("bfloat16" if overflows_float16 else "float16") if dtype == "auto" else dtype
    if precision == "int8":
        raise UnsupportedDevice("dtype 'int8' is for encoders that run packed; use auto, float16 or bfloat16 on a GPU.")
    if precision not in GPU_DTYPES:
        raise UnsupportedDevice(f"dtype {dtype!r} is not available on a GPU; use auto, float16 or bfloat16.")
    return precision


def encoder_gpu_precision(dtype: str, *, overflows_float16: bool = False) -> str:
    """`gpu_precision` of a packed encoder, which can also be "int8", in float16 beside it. Raises UnsupportedDevice."""
    if dtype != "int8":
        return gpu_precision(dtype, overflows_float16=overflows_float16)
    if overflows_float16:
        raise UnsupportedDevice("dtype 'int8' has hidden states in float16, which this family overflows. Use bfloat16.")
    capability = torch.cuda.get_device_capability()
    if capability != _INT8_CAPABILITY:
        raise UnsupportedDevice(
            f"dtype 'int8' on a GPU needs compute capability 9.0 (Hopper); {device_name()} has {capability[0]}."
            f"{capability[1]}. Use auto, float16 or bfloat16, or int8 with device='cpu'."
        )
    return dtype
