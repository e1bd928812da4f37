"""Benchmarks of delivery: poison, crashes, rolling restarts, the modes' cost, and an earlier commit beside this one."""
