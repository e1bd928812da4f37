"""CUDA kernels: one .cu file and one short wrapper each, compiled at first use."""
