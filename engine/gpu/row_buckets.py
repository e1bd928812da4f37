"""Buckets of batches of steps that share a CUDA graph, by their rows."""

_ROWS = (8, 16, 32, 64)  # then multiples of 64: a product's tiles have no fewer rows


def row_bucket(rows: int) -> int:
    """Rows of the graph for a batch of `rows` rows. Spare rows run no step."""
    return next((bucket for bucket in _ROWS if rows <= bucket), -(-rows // _ROWS[-1]) * _ROWS[-1])


def row_buckets(max_rows: int) -> list[int]:
    """All buckets of batches of up to `max_rows` rows."""
    return sorted({row_bucket(rows) for rows in range(1, max_rows + 1)})
