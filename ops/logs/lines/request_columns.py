"""`request_done` and `request_refused` lines as columns: most other lines of a worker.

A request has a trace or has none, and ran in a batch or did not. So each event has several layouts.
"""

from collections.abc import Sequence

from penstock.ops.logs.lines import batch_columns
from penstock.ops.logs.lines.line_columns import Found, LineLayout, LineShape, first_line, load_kernel

_STAGES_MS = ("tokenize_ms", "cache_ms", "schedule_ms", "compute_ms")
_PROCESS = ("service.instance.id", "pid", "worker", "suppressed")
_SHAPES = (
    LineShape("request_done", ("sample",), (), ("kafka_ms", "total_ms", *_STAGES_MS), optional=frozenset(_STAGES_MS)),
    LineShape("request_refused", ("code", *_PROCESS[:1]), ("records", *_PROCESS[1:]), (), optional=frozenset(_PROCESS)),
)
_MAX_LAYOUTS = 8  # of an event
_END = b"\n" * 8  # the scanner leaves a line out that ends within a word of the end


class RequestColumns:
    """Takes requests out of the lines of one source, in order."""

    def __init__(self) -> None:
        self._layouts: dict[str, list[LineLayout]] = {shape.event: [] for shape in _SHAPES}

    def cut(self, lines: list[bytes]) -> tuple[list[Found], list[bytes]]:
        """Columns by layout, and the other lines. Never raises for what they hold."""
        found: list[Found] = []
        block = _joined(lines)
        if len(block) < batch_columns.MIN_SCANNED_BYTES and not any(self._layouts.values()):
            return found, lines
        for shape in _SHAPES:
            known = iter(self._layouts[shape.event][:])
            while (layout := next(known, None) or self._new_layout(shape, block)) is not None:
                one, others = layout.scan(block)
                if len(one.places):
                    found.append(one)
                    lines, block = others, _joined(others)
        return found, lines

    def _new_layout(self, shape: LineShape, block: bytes) -> LineLayout | None:
        """The layout of the first line of this event that is left, unless it is known: then a value is unusual."""
        known = self._layouts[shape.event]
        first = first_line(shape, block) if len(known) < _MAX_LAYOUTS else {}
        if not first or (kernel := load_kernel()) is None:
            return None
        layout = LineLayout(kernel, shape, first)
        if layout.keys in [one.keys for one in known]:
            return None
        known.append(layout)
        return layout


def _joined(lines: Sequence[bytes]) -> bytes:
    return b"\n".join(lines) + _END
