"""Contracts between a generator and the device that holds the model and its pages of keys and values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from penstock.engine.generation.pages import Int64Array
from penstock.engine.generation.selection import Choice
from penstock.engine.generation_options import GenerationOptions
from penstock.engine.types import Int32Array


@dataclass(frozen=True, slots=True)
class DecoderRows:
    """One step's rows. Rows of one source follow each other. R rows are of N sources."""

    tokens: Int64Array  # [R]
    slots: Int64Array  # [R] where each row's key and value go: page * page size + offset
    pages: Int64Array  # [R, ...] of each row's hypothesis
    lengths: Int64Array  # [R] its positions, this step's included
    source_pages: Int64Array  # [N, ...]
    source_lengths: Int64Array  # [N]
    rows_per_source: Int64Array  # [N]


class Seq2SeqDevice(Protocol):
    """A model and its pages of keys and values. Called by the generator's thread."""

    @property
    def search(self) -> "DeviceSearch | None":
        """The search that runs on the device itself, if it has one."""
        ...

    def encode(self, sources: Sequence[Int32Array], slots: Int64Array) -> None:
        """Run the encoder, and write what the decoder reads of the sources' tokens, end to end, to their slots."""
        ...

    def step(self, rows: DecoderRows) -> Tensor:
        """Logits [R, V] of the token after each row's, float32 on the host."""
        ...

    def copy_pages(self, sources: Int64Array, destinations: Int64Array) -> None:
        """Copy pages of all layers; no page is in both."""
        ...

    def clear_pages(self, pages: Int64Array) -> None:
        """Make pages zero. Attention may multiply what lies behind a row's last key by zero, which no NaN survives."""
        ...

    def idle(self) -> bool:
        """Do a piece of work that makes later steps faster, if there is any. Returns whether it did.

        Called while no call is underway and no request waits. Raises nothing: a device that has failed says so in the
        next call.
        """
        ...


class SearchRequest(NamedTuple):
    """A request whose tokens the device chooses. Its source was encoded."""

    id: int
    options: GenerationOptions
    pages: Int64Array  # [num_beams, any]: where each beam's keys and values go, of max_new_tokens positions
    source_pages: Int64Array  # [any]
    source_length: int


class DeviceSearch(Protocol):
    """Chooses tokens on the device, for many steps without the host. Its choices are those of `selection.choose`.

    A request is open from `open` to `close`, also after its end.
    """

    def supports(self, options: GenerationOptions) -> bool:
        """Whether the device chooses by these options."""
        ...

    def open(self, requests: Sequence[SearchRequest]) -> None:
        """Take requests up, before their first step. Where it raises, none of them is open."""
        ...

    def run(self, ids: Sequence[int], quantum: int) -> list[tuple[int, Choice]]:
        """Run up to `quantum` steps of open requests. Returns what is new, by request, with the steps that ran.

        Where it raises, no request has run a step. An error of a part of the requests, after others have run, waits for
        the next call.
        """
        ...

    def close(self, id: int) -> None:
        """Forget a request."""
        ...
