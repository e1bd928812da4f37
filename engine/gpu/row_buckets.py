"""Batches of steps that share a CUDA graph: the buckets of their rows, and their quanta."""

_LEAST = 8
_TILE = 64  # rows: powers of two up to it, then its multiples: a product's tiles have no fewer rows


def row_bucket(rows: int) -> int:
    """Rows of the graph for a batch of `rows` rows. Spare rows run no step."""
    return max(_LEAST, 1 << (rows - 1).bit_length()) if rows <= _TILE else -(-rows // _TILE) * _TILE


def row_buckets(max_rows: int) -> list[int]:
    """All buckets of batches of up to `max_rows` rows."""
    return sorted({row_bucket(rows) for rows in range(1, max_rows + 1)})


def quanta(max_steps: int) -> list[int]:
    """Quanta of up to `max_steps` steps, as schedulers choose them: powers of two up to 8, then multiples of 4."""
    return [steps for steps in (1, 2, 4, *range(8, max_steps, 4)) if steps < max_steps] + [max_steps]
