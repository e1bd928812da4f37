"""Cells on an NVIDIA GPU: states in slots on the device, and a CUDA graph for each task."""
