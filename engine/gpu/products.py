"""Choice between cuBLAS and our own matrix products. The crossovers were measured on an H200.

Few rows: microseconds a product in a CUDA graph, float16, BERT-base, weights not in the L2 cache. On the left cuBLAS
and a launch for the operations after it, on the right ours (part `products` of ops/bench/results/gpu/nvidia-h200).

    rows                            32           64           128          256
    to 3,072, bias and GELU         7.8   4.6    7.9   4.9    7.9   5.7    7.7   no
    from 768, residual and norm     7.1   4.5    6.4   4.4    6.5   5.0    6.8   no
    from 3,072, residual and norm   9.4   5.4    9.5   6.7    9.8   8.8   11.0   no

Every block that computes columns of a row reads the row again, so larger products are not computed so. Nor are products
without an epilogue. On Hopper `mid_product` takes the place of all of these. With these and cuBLAS up to 32 rows, and
with it, a forward of 20 tokens takes, ms: MiniLM-L6 0.098 and 0.094, BERT-base 0.238 and 0.206, bge-m3 0.542 and 0.474,
DeBERTa-v3-base 0.290 and 0.258, ModernBERT-base 0.479 and 0.346, NomicBERT 0.305 and 0.211, Qwen3-0.6B 0.890 and 0.732.

Up to 1,024 rows, on Hopper; on another H200, with the norm before or after the product. On the left the faster of
cuBLAS and the kernel for few rows, on the right `mid_product`:

    rows                            64          128         256         384         512         768          1,024
    to 2,304                        6.8   5.2   6.9   5.3   7.5   6.2   8.2   7.2   9.0   7.4   10.4   9.8   11.6  12.1
    to 3,072, bias and GELU         7.1   6.1   8.3   6.7   8.9   7.2   11.2  8.9   11.6  9.5   14.4  11.5   16.4  14.3
    from 768, residual and norm     4.3   3.9   4.7   4.1   5.8   4.9   6.0   5.1   6.3   5.1   6.7    5.9   7.1    6.1
    from 3,072, residual and norm   6.8   5.4   8.9   5.7   10.1  7.2   10.6  8.3   10.7  8.8   11.7  11.6   12.5  11.9

What costs 0.5 us here still gains in a forward, for the kernels beside it start early. Gates and rotary positions are
in its epilogue too. A forward of a ModernBERT-base with a pass for each, and without, ms: 50 tokens 0.460 and 0.387,
128 0.523 and 0.442, 256 0.620 and 0.530, 512 0.822 and 0.701, two of 512 1.140 and 1.005.

Many rows, to 3,072 with bias and GELU:

    rows                            1,024        1,536        2,048        4,096        16,384
                                    14.9  14.3   19.3  no     23.6  20.1   46.0  36.7   184   151

and to 2,304 with bias alone, which saves 1 to 5 % of a forward of 2,048 rows and more. Gates in the epilogue save 3 to
4 % of a ModernBERT-base (5-500 tokens: 6,576 requests/s before, 6,828 after; two runs). Rotary positions there save a
pass as an activation does, and count as one.

Before a norm, with the norm's kernel in both, on another H200; on the left cuBLAS, on the right ours:

    rows                            2,048        3,072        4,096        8,192        12,288       16,384
    from 768 to 768                 11.1  11.6   13.8  15.8   16.8  17.3   27.9  26.7   38.5  38.3   51.1  48.4
    from 1,152 to 768               13.0  13.9   15.8  19.5   19.4  20.9   33.3  33.4   46.8  49.0   63.6  62.5
    from 3,072 to 768               21.1  24.3   30.6  41.3   36.4  42.3   65.1  66.6   95.4  107    128   131
    from 1,024 to 1,024             17.8  16.7   22.5  23.9   24.7  23.2   41.0  39.1   60.8  57.3   79.5  75.6

In a forward ours gains more, for no gap is around it: ModernBERT-base, four batches of 16,384 tokens of 2-100, 35.60 ms
with cuBLAS's and 34.44 with ours, in turn. It is used in pre-norm encoders, of which one was measured.

cuBLAS may add the parts of a float16 product in float16, torch's default. Sums in float32 (reduced precision off) left
the error of every length unchanged to five digits, and made one request of 5-500 tokens 3 % slower.
"""

from dataclasses import dataclass
from typing import NamedTuple

import structlog
import torch
from torch import Tensor

from penstock.engine.errors import UnsupportedDevice
from penstock.engine.kernels import mid_product, wide_product, wide_tile
from penstock.engine.kernels.mid_product import MidTile
from penstock.engine.kernels.short_product import STAGE_DEPTH, Tile

MAX_ROWS = 224  # of the products of few rows
_ACTIVATED_PRODUCTS = 3.1e8  # most multiplications of a product of few rows that is ours
_SPLIT_PRODUCTS = 6.1e8
_MAX_SPLITS = 6
_BLOCKS = 200  # running at a time, one or two a multiprocessor
_MOST_PARTS = 132 * 128 * 96  # float32 values: an H200's tiles of two groups, of more than any of one or of short_split

_MID_ROWS = range(1, 1025)
_MID_SHARE = 0.85  # least share of rows in the largest tiles that are not spare
_MID_SPLIT_PRODUCTS = 3.5e9
_MID_PARTS = 4
_STAGE_US = (0.16, 0.26)  # a stage of the depth, by the tile's groups
_SPLIT_US, _VALUE_US = 0.5, 1.4e-6  # of a split, and of each value of its parts, written and read

_WIDE_ROWS, _WIDE_PLAIN_ROWS = 1024, 2048
_WIDE_DEPTH = 256  # tiles of less depth are dominated by their prologue and epilogue
_WIDE_SHARE = 0.65  # least share of tiles in full rounds: the last round may leave tensor cores idle
# Without an epilogue cuBLAS alone competes. It is faster at more depth, and where fewer tiles fill their rounds.
_SUM_DEPTH, _SUM_SHARE = 1280, 0.9

log = structlog.get_logger("penstock.engine")


class Split(NamedTuple):
    """A split-K product: of `split_product`, or of `mid_parts` or, in one part, `mid_product`."""

    tile: Tile | MidTile
    num_parts: int


@dataclass(frozen=True, slots=True)
class Products:
    """Resources of the products of one model on a device."""

    scratch: Tensor  # float32, for the parts of a product to the hidden size; overwritten by each
    wide_groups: int  # tiles that the device computes at a time, of `wide_product` and `mid_product`; 0: not supported

    @classmethod
    def on(cls, device: torch.device, dtype: torch.dtype, hidden_size: int, epilogues: set[str]) -> "Products":
        """Allocate the scratch, and compile `wide_product` and `mid_product` for these epilogues."""
        scratch = torch.empty(most_parts(hidden_size), dtype=torch.float32, device=device)
        if device.type != "cuda":
            return cls(scratch, wide_groups=0)
        index = torch.cuda.current_device() if device.index is None else device.index
        groups = wide_tile.num_groups(index)
        try:
            for epilogue in epilogues if groups else ():
                wide_product.prepare(epilogue, dtype, index)
            if groups:
                mid_product.prepare(epilogues, dtype, index)
        except UnsupportedDevice as error:
            log.warning("wide_product_off", error=str(error).partition("\n")[0])
            groups = 0
        return cls(scratch, groups)

    def is_wide(self, rows: int, width: int, depth: int, *, is_plain: bool) -> bool:
        """Whether `wide_product` computes act(x w' + bias), w [width, depth].

        is_plain: nothing is in the epilogue that would be a pass of its own.
        """
        is_small = rows < (_WIDE_PLAIN_ROWS if is_plain else _WIDE_ROWS) or depth < _WIDE_DEPTH
        if is_small or not self.wide_groups:
            return False
        tiles = wide_tile.num_tiles(rows, width)
        return tiles >= _WIDE_SHARE * self.wide_groups * -(-tiles // self.wide_groups)

    def is_wide_before_sum(self, rows: int, width: int, depth: int) -> bool:
        """Whether `wide_product` computes x w' before a norm of a pre-norm encoder, which adds bias and residual."""
        at_once = -(-self.wide_groups // 2)  # two groups take turns
        if not at_once or rows < _WIDE_PLAIN_ROWS or not _WIDE_DEPTH <= depth <= _SUM_DEPTH:
            return False
        tiles = wide_tile.num_tiles(rows, width)
        return tiles >= _SUM_SHARE * at_once * -(-tiles // at_once)

    def mid_tile(self, rows: int, width: int) -> MidTile | None:
        """The tile of `mid_product` for x w', w [width, *]; None if it does not compute that.

        The smallest of which the device computes all at a time.
        """
        if rows not in _MID_ROWS:
            return None
        fitting = (tile for tile in mid_product.TILES if tile.num_tiles(rows, width) <= self.wide_groups)
        tile = next(fitting, None)
        if tile == mid_product.TILES[-1] and rows < _MID_SHARE * -(-rows // tile.rows) * tile.rows:
            return None
        return tile

    def split(self, rows: int, width: int, depth: int) -> Split | None:
        """The split of x w' before a norm, of one part or more; None if cuBLAS computes it."""
        if rows not in _MID_ROWS or not self.wide_groups:
            return short_split(rows, width, depth)
        if rows * width * depth > _MID_SPLIT_PRODUCTS:
            return None
        stages = -(-depth // mid_product.STAGE_DEPTH)
        room = len(self.scratch) // (rows * width)
        fitting = {
            Split(tile, parts): us * -(-stages // parts) + (parts > 1) * (_SPLIT_US + _VALUE_US * parts * rows * width)
            for tile, us in zip(mid_product.TILES, _STAGE_US, strict=False)
            for parts in range(1, min(_MID_PARTS, stages) + 1)
            if parts * tile.num_tiles(rows, width) <= self.wide_groups
            and (parts == 1 or parts <= room)
            and (parts - 1) * -(-stages // parts) < stages  # the last has a stage too
        }
        return min(fitting, key=fitting.__getitem__, default=None)


def short_tile(rows: int, width: int, depth: int) -> Tile | None:
    """The tile of `short_product` for act(x w' + bias), w [width, depth]; None if it does not compute that."""
    if rows > MAX_ROWS or rows * width * depth > _ACTIVATED_PRODUCTS:
        return None
    return Tile(32, 32) if rows <= 96 else Tile(64, 32)


def short_split(rows: int, width: int, depth: int) -> Split | None:
    """The split of `split_product` for x w' before a norm; None if it does not compute that."""
    if rows > MAX_ROWS or rows * width * depth > _SPLIT_PRODUCTS:
        return None
    tile = Tile(32, 32) if rows <= 32 or depth <= 1024 else Tile(64, 64)
    blocks = -(-rows // tile.rows) * -(-width // tile.columns)
    stages = -(-depth // STAGE_DEPTH)
    stages_a_part = -(-stages // max(1, min(_MAX_SPLITS, _BLOCKS // blocks, stages)))
    return Split(tile, -(-stages // stages_a_part))  # fewer if the last would have no stage


def most_parts(width: int) -> int:
    """float32 values that the parts of any product to `width` fit into."""
    return max(MAX_ROWS * width, _MOST_PARTS)
