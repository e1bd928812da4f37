"""A closed loop of LSTM chains: a full batch at all times, whose ended rows are replaced at once."""

import time
from collections import deque
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from penstock.engine.cells.contract import NO_SLOT, CellBatch, Int32Array, RunningCells, StepEngine

_DEPTH = 2  # batches underway


@dataclass(frozen=True, slots=True)
class Sentences:
    """Token ids one after another, and where each sentence begins."""

    tokens: Int32Array
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @classmethod
    def random(cls, lengths: npt.NDArray[np.int64], vocabulary: int, seed: int) -> "Sentences":
        """Followed by spare tokens, so that a quantum may be read past the last sentence's end."""
        ends = np.cumsum(lengths)
        tokens = np.random.default_rng(seed).integers(0, vocabulary, int(ends[-1]) + 64, dtype=np.int32)
        return cls(tokens, ends - lengths, lengths)


@dataclass(frozen=True, slots=True)
class LoopFigures:
    """Measurements of a closed loop."""

    rows: int
    quantum: int
    requests_per_s: float
    row_steps_per_s: float  # steps of rows that had one left
    fill: float  # share of the device's row steps that a row had left
    batches: int
    host_us: float  # of a batch: its decision and its start
    device_us: float  # of a batch, mean
    wait_us: float  # of a batch: the host waits for the device

    def as_json(self) -> dict[str, float]:
        """By field."""
        return asdict(self)


class ClosedLoop:
    """Rows that each run one sentence after another. Row i keeps its state in slot i + 1."""

    def __init__(self, engine: StepEngine, cell: str, sentences: Sentences, rows: int, quantum: int) -> None:
        self._engine = engine
        self._cell = cell
        self._sentences = sentences
        self._quantum = quantum
        self._slots = np.arange(1, rows + 1, dtype=np.int32)
        self._next = rows  # sentence that joins next
        self._at = sentences.starts[:rows].copy()  # of each row's next token
        self._left = sentences.lengths[:rows].copy()
        self._is_new = np.ones(rows, np.bool_)
        self._windows = np.lib.stride_tricks.sliding_window_view(sentences.tokens, quantum)
        self.finished = 0
        self.row_steps = 0

    def start(self) -> RunningCells:
        """Start the next quantum of all rows, and replace the sentences that end in it."""
        steps = np.minimum(self._left, self._quantum)
        batch = CellBatch(
            cell=self._cell,
            read=np.where(self._is_new, np.int32(NO_SLOT), self._slots)[:, None],
            write=self._slots,
            inputs={"token": self._windows[self._at]},
            steps=steps.astype(np.int32),
            is_first=self._is_new,
            quantum=self._quantum,
        )
        running = self._engine.start(batch)
        self._left -= steps
        self._at += steps
        self.row_steps += int(steps.sum())
        self._replace(np.flatnonzero(self._left == 0))
        return running

    def _replace(self, ended: npt.NDArray[np.int64]) -> None:
        self.finished += len(ended)
        joining = np.arange(self._next, self._next + len(ended)) % len(self._sentences.lengths)
        self._next += len(ended)
        self._at[ended] = self._sentences.starts[joining]
        self._left[ended] = self._sentences.lengths[joining]
        self._is_new = np.zeros(len(self._slots), np.bool_)
        self._is_new[ended] = True

    def run(self, seconds: float, warm_up_s: float) -> LoopFigures:
        """Measure for `seconds` after a warm-up. Two batches are underway."""
        self._drive(warm_up_s)
        finished, row_steps = self.finished, self.row_steps
        batches, elapsed_s, device_s, wait_s = self._drive(seconds)
        done, stepped = self.finished - finished, self.row_steps - row_steps
        rows = len(self._slots)
        return LoopFigures(
            rows=rows,
            quantum=self._quantum,
            requests_per_s=done / elapsed_s,
            row_steps_per_s=stepped / elapsed_s,
            fill=stepped / (batches * rows * self._quantum),
            batches=batches,
            host_us=1e6 * (elapsed_s - wait_s) / batches,
            device_us=1e6 * device_s / batches,
            wait_us=1e6 * wait_s / batches,
        )

    def _drive(self, seconds: float) -> tuple[int, float, float, float]:
        """Batches, elapsed seconds, and the seconds of the device and of waiting for it."""
        underway: deque[RunningCells] = deque()
        batches, device_s, wait_s = 0, 0.0, 0.0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds or underway:
            if time.perf_counter() - started < seconds:
                underway.append(self.start())
                batches += 1
                if len(underway) < _DEPTH:
                    continue
            before = time.perf_counter()
            device_s += underway.popleft().result().device_s
            wait_s += time.perf_counter() - before
        return batches, time.perf_counter() - started, device_s, wait_s
