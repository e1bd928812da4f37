"""Errors of the engine.

EngineError
├── CheckpointError         a file is missing, damaged, or not safetensors
│   └── UnsupportedCheckpoint   the files are sound, but the architecture or a module is not implemented
│       └── NotPacked               the packed runtime does not implement it; transformers may, padded
├── UnsupportedDevice       the requested device or precision is not available here
│   └── NoKernel                the packed runtime has no kernel for it; transformers may run it there, padded
├── InvalidBatch            a batch that would read outside of the model's tables
├── NotFinite               a result holds NaN or infinity
├── InvalidOption           an option of generation that has a wrong value or is not implemented
├── InvalidSource           a source that no generator can decode: empty, too long, or with unknown tokens
├── GeneratorFull           as many requests wait as the generator lets wait
├── DeviceFailed            the GPU cannot be used by this process any more
└── LanesClosed             a batch was submitted to, or still queued in, closed lanes

Errors that a batch raises are of any class; `is_out_of_memory` and `is_transient` sort them.
"""

import re

# torch's allocator on a GPU raises a type of its own. Its other allocators, the driver, cuBLAS and cuDNN say it in the
# message.
_OUT_OF_MEMORY = re.compile(
    r"out[ _]of[ _]memory|ALLOC_FAILED|MemoryAllocation|allocate memory|not enough memory", re.IGNORECASE
)
_OF_DEVICE = re.compile(r"CUDA|cuBLAS|cuDNN|NVRTC", re.IGNORECASE)


class EngineError(Exception):
    """Root of the tree."""


class CheckpointError(EngineError):
    """A checkpoint cannot be read: a file is missing, damaged, or not safetensors."""


class UnsupportedCheckpoint(CheckpointError):
    """The checkpoint is readable, but its architecture or one of its modules is not implemented."""


class NotPacked(UnsupportedCheckpoint):
    """The packed runtime does not implement what config.json asks for. transformers may run the checkpoint, padded."""


class UnsupportedDevice(EngineError):
    """The requested device or precision is not available here."""


class NoKernel(UnsupportedDevice):
    """The packed runtime does not run the model on this GPU. transformers may, padded."""


class InvalidBatch(EngineError, ValueError):
    """A batch's bounds or token types are not the model's; nothing was computed."""


class NotFinite(EngineError):
    """The result of a sequence holds NaN or infinity. The other sequences of its batch are not affected."""


class InvalidOption(EngineError, ValueError):
    """An option of generation has a wrong value or is not implemented. The message begins with its name."""


class InvalidSource(EngineError, ValueError):
    """A source cannot be decoded: it is empty, too long, or has tokens that the model does not know."""


class GeneratorFull(EngineError):
    """As many requests wait as the generator lets wait. The same request may be accepted later."""


class DeviceFailed(EngineError):
    """A CUDA error that stays: every later call of this process would fail too."""


class LanesClosed(EngineError):
    """The batch was not computed because the engine lanes are closed."""


def wider_than(dtype: str) -> str:
    """The way out where a number overflows in `dtype`."""
    if dtype == "float16":
        return "Use --dtype bfloat16, which has the range of float32, or float32 on a CPU."
    if dtype == "float32":
        return "No --dtype has a wider range; take an earlier or another checkpoint."
    return "Use --dtype float32."


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller batch may succeed."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, without importing it
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None


def is_transient(error: BaseException) -> bool:
    """Whether the same batch may succeed later: the device, memory or operating system failed, not the input."""
    if isinstance(error, OSError) or is_out_of_memory(error):
        return True
    return isinstance(error, RuntimeError) and _OF_DEVICE.search(str(error)) is not None
