"""CUDA kernels: one .cu file and one short wrapper each. Nothing is compiled before it is first used."""
