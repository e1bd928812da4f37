"""Hidden states of packed batches on a GPU: upload and forward, both asynchronous."""

from functools import lru_cache, partial
from typing import Any

import structlog
import torch
from torch import Tensor

from penstock.engine.device_share import DeviceShare
from penstock.engine.gpu.attention import AttentionTables, prepare_long
from penstock.engine.gpu.buckets import GRAPH_ROWS, GRAPH_SEQUENCES, graph_shape
from penstock.engine.gpu.choice import AttentionKernel, choose_kernel, longest_seen_whole
from penstock.engine.gpu.graphs import Graphs, Work
from penstock.engine.gpu.inputs import Inputs, OneSequence, Shape, describe, exact_shape, views
from penstock.engine.gpu.int8_encoder import prepare_int8, require_int8_supported
from penstock.engine.gpu.int8_ops import Int8Ops, int8_rows_bytes
from penstock.engine.gpu.ops import GpuOps, epilogues_of, prepare_for_gpu
from penstock.engine.gpu.pinned import UploadRing
from penstock.engine.gpu.products import Products
from penstock.engine.gpu.support import require_supported
from penstock.engine.gpu.workspace import Workspace
from penstock.engine.kernels.library import block_shared_bytes
from penstock.engine.model.int8_balance import Int8Plan
from penstock.engine.model.positions import pad_positions
from penstock.engine.model.program import record
from penstock.engine.model.weights import Encoder, EncoderWeights
from penstock.engine.types import PackedBatch, require_valid

_NO_LIMIT = 1 << 20  # longest sequence of a model without position tables
_SINGLE_TOKENS = 512  # longest single sequence whose description is kept

log = structlog.get_logger("penstock.engine")


class GpuEncoder:
    """One model on one device. Called from one thread; its work goes to torch's current stream, always the same one."""

    def __init__(
        self,
        weights: EncoderWeights,
        dtype: torch.dtype = torch.float16,
        *,
        device: torch.device | str = "cuda",
        graphs: bool = True,
        int8_plan: Int8Plan | None = None,
    ) -> None:
        """graphs: whether to capture CUDA graphs; without them every kernel of every batch is launched by the host.

        int8_plan: for products in eight-bit integers; `dtype` is then of the rest. Raises UnsupportedDevice and
        UnsupportedCheckpoint for a model that no kernel supports.
        """
        require_supported(weights)
        encoder, epilogues, self.wider_layers = _prepared(weights, int8_plan, dtype, torch.device(device))
        self.device = encoder.embeddings.words.device  # "cuda" with its index
        self.dtype = dtype
        shared_bytes = block_shared_bytes(self.device)
        long = prepare_long([layer.attention for layer in encoder.layers], encoder.heads, dtype, self.device)
        self._kernel_for = partial(
            choose_kernel,
            encoder.layers[0].attention,
            encoder.heads.dim,
            shared_bytes=shared_bytes,
            seen_whole=longest_seen_whole(encoder),
            long=long,
        )
        self._kernel_for(
            encoder.max_tokens or 1, 1
        )  # raises here, instead of in the first batch, if there is no kernel
        self._tables = AttentionTables.of(encoder, self.device, long)
        self._products = Products.on(self.device, dtype, weights.hidden_size, epilogues)
        self._embeddings = encoder.embeddings
        types = encoder.embeddings.token_types
        self._num_types = None if types is None else len(types)
        self._has_types = self._num_types is not None and self._num_types > 1
        self._graph_shape = lru_cache(maxsize=4096)(
            partial(
                graph_shape,
                max_tokens=encoder.max_tokens or _NO_LIMIT,
                choose=self._kernel_for,
                has_types=self._has_types,
            )
        )
        self._program = record(encoder, lambda dense: dense.width, dtype.itemsize)
        self._is_int8 = int8_plan is not None
        if self._is_int8:
            row_bytes = int8_rows_bytes(weights)
            self._program = self._program.with_scratch(row_bytes, row_bytes // dtype.itemsize)
        self._uploads = UploadRing(self.device)
        self._single: dict[int, OneSequence] = {}  # by tokens
        self._graphs: Graphs[Shape] | None = Graphs(self.device) if graphs else None
        self._graph_workspace = Workspace(self._program, dtype, self.device)
        self._graph_inputs = torch.empty(0, dtype=torch.int32, device=self.device)
        self._graph_views: dict[Shape, Inputs] = {}
        self._prepared_rows: set[int] = set()
        self._workspace = Workspace(self._program, dtype, self.device)
        self._inputs = torch.empty(0, dtype=torch.int32, device=self.device)

    def run(self, batch: PackedBatch) -> Tensor:
        """Hidden states [T, H] of the batch's tokens, in its order; valid until the next run.

        For callers without a lane, which cannot tell when the device is idle. A graph that is due is captured here,
        after the batch, so the call takes longer. Raises InvalidBatch.
        """
        with torch.cuda.device(self.device):
            hidden = self.forward(self.upload(batch))[: len(batch.token_ids)]
            self.capture_next()
        return hidden

    def upload(self, batch: PackedBatch) -> Inputs:
        """Check the batch and queue the copy of its description, over that of the batch before. Raises InvalidBatch."""
        num_tokens = len(batch.token_ids)
        one, positions = self._single.get(num_tokens), pad_positions(batch, self._embeddings)
        if one is not None and positions is None and one.is_of(batch):
            one.write(batch, self._uploads.buffer(len(one.values)))
            self._uploads.upload(one.inputs.address, len(one.values))
            return one.inputs
        require_valid(batch, self._num_types)
        shape = self._graph_shape(num_tokens, len(batch.cu_seqlens) - 1, batch.max_seqlen)
        if shape is not None and self._has_graph_memory():
            inputs = self._graph_inputs_of(shape)
        else:
            kernel = self._kernel_for(batch.max_seqlen, num_tokens)
            inputs = self._inputs_of(batch, exact_shape(batch, kernel, has_types=self._has_types))
        values = self._uploads.buffer(inputs.shape.num_values)
        describe(batch, inputs.shape, values, positions)
        self._uploads.upload(inputs.address, len(values))
        if inputs.at_rest and num_tokens <= _SINGLE_TOKENS and positions is None:
            first = OneSequence(inputs, values.copy())
            if first.is_of(batch):
                self._single[num_tokens] = first
        return inputs

    def forward(self, inputs: Inputs) -> Tensor:
        """Hidden states [rows, H] of what was uploaded last. Does not wait for the device."""
        if self._graphs is not None and inputs.at_rest:
            return self._graphs.run(inputs.shape, self._graph_work(inputs.shape))
        return self._launch(inputs, self._workspace)

    @property
    def is_capture_due(self) -> bool:
        """Whether `capture_next` has a graph to capture."""
        return self._graphs is not None and self._graphs.is_due

    def capture_next(self) -> bool:
        """Capture one graph that is due, if any is. Returns whether one was. Called between batches."""
        return self._graphs is not None and self._graphs.capture_next(self._graph_work)

    def prepare(self, batch: PackedBatch, share: DeviceShare) -> bool:
        """Capture the graph for batches of this one's shape ahead of them. Returns whether there may be more graphs.

        Our own kernels were loaded by warm-up batches. cuBLAS loads some for each number of rows, so each number of
        rows is launched once first. A kernel that is loaded keeps other processes from the device; a capture does not.
        """
        if self._graphs is None or self._graphs.is_prepared:
            return False
        inputs = self.upload(batch)
        if inputs.at_rest:
            work = self._graph_work(inputs.shape)
            if inputs.shape.rows not in self._prepared_rows:
                self._prepared_rows.add(inputs.shape.rows)
                with share.used():
                    work()
            self._graphs.capture(inputs.shape, work)
        return self._graphs is not None

    def trim(self) -> None:
        """Release memory that recent batches did not need. No work may be underway."""
        self._inputs = torch.empty(0, dtype=torch.int32, device=self.device)  # the next batch allocates it again
        self._workspace.trim()

    def _inputs_of(self, batch: PackedBatch, shape: Shape) -> Inputs:
        if len(self._inputs) < shape.num_values:
            self._inputs = torch.empty(2 * shape.num_values, dtype=torch.int32, device=self.device)
        return views(self._inputs, shape)

    def _graph_inputs_of(self, shape: Shape) -> Inputs:
        """As `_inputs_of`, at the address that every graph reads."""
        inputs = self._graph_views.get(shape)
        if inputs is None:
            inputs = self._graph_views[shape] = views(self._graph_inputs, shape, at_rest=True)
        return inputs

    def _has_graph_memory(self) -> bool:
        """Allocate, once, the memory that graphs hold addresses of. Graphs are turned off if there is too little."""
        if self._graphs is None:
            return False
        if len(self._graph_inputs):
            return True
        largest = Shape(GRAPH_ROWS, GRAPH_SEQUENCES, GRAPH_ROWS, has_types=True, kernel=AttentionKernel.SHORT)
        try:
            self._graph_workspace.reserve(GRAPH_ROWS)
            self._graph_inputs = torch.empty(largest.num_values, dtype=torch.int32, device=self.device)
        except torch.OutOfMemoryError as error:
            log.warning("graphs_off", error=str(error).partition("\n")[0])
            self._graphs = None
            self._graph_workspace.arena.release()
            return False
        return True

    def _graph_work(self, shape: Shape) -> Work:
        return lambda: self._launch(self._graph_views[shape], self._graph_workspace)

    def _launch(self, inputs: Inputs, workspace: Workspace) -> Tensor:
        buffers = workspace.buffers(inputs.shape.rows)
        if self._is_int8:
            ops: GpuOps = Int8Ops(inputs, self._tables, self._products, buffers[-1])
        else:
            ops = GpuOps(inputs, self._tables, self._products)
        return self._program.run(ops.by_name(), buffers)


def _prepared(
    weights: EncoderWeights, int8_plan: Int8Plan | None, dtype: torch.dtype, device: torch.device
) -> tuple[Encoder[Any], set[str], tuple[str, ...]]:
    """The encoder on the device, the epilogues of its wide products, and the matrices that are not in int8."""
    if int8_plan is not None:
        require_int8_supported(weights)
        encoder, wider = prepare_int8(weights, int8_plan, dtype, device)
        return encoder, set(), wider
    plain = prepare_for_gpu(weights, dtype, device)
    return plain, epilogues_of(plain), ()
