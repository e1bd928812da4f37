"""Runners of cells under each policy, and of nn.LSTM."""
