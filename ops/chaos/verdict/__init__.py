"""The outcome of every request, and whether the promises were kept."""
