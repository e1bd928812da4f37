"""Comparison of a checkpoint on this runtime with transformers in float32."""
