"""Which device there is, and what it computes in."""

from importlib.util import find_spec

import torch

from penstock.engine.errors import UnsupportedDevice

GPU_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_OLDEST_CAPABILITY = (8, 0)


def choose_device(wanted: str) -> str:
    """ "cpu" or "cuda"; for "auto" a GPU if there is one. Raises UnsupportedDevice with what is missing."""
    match wanted:
        case "cpu":
            return "cpu"
        case "auto":
            return "cuda" if missing_for_gpu() is None else "cpu"
        case "cuda":
            missing = missing_for_gpu()
            if missing is not None:
                raise UnsupportedDevice(f"device 'cuda' is not available: {missing}.")
            return "cuda"
        case _:
            raise UnsupportedDevice(f"device {wanted!r} is not available; use auto, cpu or cuda.")


def missing_for_gpu() -> str | None:
    """What keeps the GPU engine from running here; None when nothing does."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA GPU"
    if find_spec("cupy") is None:
        return "CuPy is not installed: pip install 'penstock[gpu]' (CUDA 12) or 'penstock[gpu-cuda13]' (CUDA 13)"
    capability = torch.cuda.get_device_capability()
    if capability < _OLDEST_CAPABILITY:
        return f"{device_name()} has compute capability {capability[0]}.{capability[1]}, and the kernels need 8.0"
    return None


def device_name() -> str:
    """The current GPU, as its driver names it."""
    return torch.cuda.get_device_name()


def gpu_precision(dtype: str) -> str:
    """A GPU's arithmetic for `dtype`. Raises UnsupportedDevice."""
    precision = "float16" if dtype == "auto" else dtype
    if precision not in GPU_DTYPES:
        raise UnsupportedDevice(f"dtype {dtype!r} is not available on a GPU; use auto, float16 or bfloat16.")
    return precision
