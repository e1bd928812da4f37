"""Errors of the engine.

EngineError
├── CheckpointError         a file is missing, damaged, or not safetensors
│   └── UnsupportedCheckpoint   the files are sound, but the architecture or a module is not implemented
├── UnsupportedDevice       the requested device or precision is not available here
├── InvalidBatch            a batch that would read outside of the model's tables
├── DeviceFailed            the GPU cannot be used by this process any more
└── LanesClosed             a batch was submitted to, or still queued in, closed lanes
"""


class EngineError(Exception):
    """Root of the tree."""


class CheckpointError(EngineError):
    """A checkpoint cannot be read: a file is missing, damaged, or not safetensors."""


class UnsupportedCheckpoint(CheckpointError):
    """The checkpoint is readable, but its architecture or one of its modules is not implemented."""


class UnsupportedDevice(EngineError):
    """The requested device or precision is not available here."""


class InvalidBatch(EngineError, ValueError):
    """A batch's bounds or token types are not the model's; nothing was computed."""


class DeviceFailed(EngineError):
    """A CUDA error that stays: every later call of this process would fail too."""


class LanesClosed(EngineError):
    """The batch was not computed because the engine lanes are closed."""
