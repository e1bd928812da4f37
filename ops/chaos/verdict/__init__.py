"""What became of every request, and whether the promises were kept."""
