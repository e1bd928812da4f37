"""What can go wrong in the engine room.

EngineError
├── CheckpointError         a file is missing, damaged, or of a kind that is not read
│   └── UnsupportedCheckpoint   the files are sound, but describe a model that is not implemented
├── UnsupportedDevice       the requested device or precision is not available here
├── DeviceFailed            the GPU is past use in this process
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


class DeviceFailed(EngineError):
    """A CUDA error that stays: every later call of this process would fail too."""


class LanesClosed(EngineError):
    """The batch was not computed because the engine lanes are closed."""
