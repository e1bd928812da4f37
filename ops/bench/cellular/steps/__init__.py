"""Checks and times of single steps of LSTM cells."""
