"""The only room that knows torch, devices and checkpoints: packed batches in, rows out."""
