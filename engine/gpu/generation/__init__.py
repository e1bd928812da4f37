"""Encoder-decoder generation on an NVIDIA GPU: encoder and decoder from CUDA graphs, and the search on the device."""
