"""The encoder on an NVIDIA GPU: a recorded forward of fused kernels, in planned memory, replayed as CUDA graphs.

Generation and cells have folders of their own.
"""

from penstock.engine.gpu.encoder import GpuEncoder

__all__ = ["GpuEncoder"]
