"""A checkpoint on this runtime compared with transformers in float32."""
