"""Hidden states of packed batches on a GPU: upload, forward, nothing waited for."""

from functools import partial

import numpy as np
import structlog
import torch
from torch import Tensor

from penstock.engine.gpu.attention import AttentionTables
from penstock.engine.gpu.buckets import GRAPH_ROWS, GRAPH_SLOTS, graph_shape
from penstock.engine.gpu.choice import AttentionKernel, choose_kernel
from penstock.engine.gpu.graphs import Graphs
from penstock.engine.gpu.inputs import Inputs, Shape, Staging, exact_shape, views
from penstock.engine.gpu.kernels import GpuKernels, prepare_for_gpu
from penstock.engine.gpu.memory import Workspace
from penstock.engine.gpu.products import Products
from penstock.engine.gpu.support import require_supported
from penstock.engine.kernels.library import block_shared_bytes
from penstock.engine.model.program import record
from penstock.engine.model.weights import EncoderWeights
from penstock.engine.types import PackedBatch

_NO_LIMIT = 1 << 20  # longest sequence of a model without position tables

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
    ) -> None:
        """`graphs=False` launches every kernel of every batch from the host.

        Raises UnsupportedDevice and UnsupportedCheckpoint for what would fail in every batch.
        """
        require_supported(weights)
        self.device = torch.device(device)
        self.dtype = dtype
        encoder = prepare_for_gpu(weights, dtype, self.device)
        shared_bytes = block_shared_bytes(self.device)
        self._kernel_for = partial(
            choose_kernel, encoder.layers[0].attention, encoder.head_dim, shared_bytes=shared_bytes
        )
        self._kernel_for(1, 1)  # raises here, and not in the first batch, where there is none
        self._tables = AttentionTables.of(encoder, self.device)
        activations = {dense.activation for layer in encoder.layers for dense in (layer.qkv, layer.up)}
        self._products = Products.on(self.device, dtype, weights.hidden_size, activations)
        self._max_tokens = encoder.max_tokens or _NO_LIMIT
        types = encoder.embeddings.token_types
        self._has_types = types is not None and len(types) > 1
        self._program = record(encoder, lambda dense: dense.width, dtype.itemsize)
        self._staging = Staging()
        self._graphs = Graphs(self.device) if graphs else None
        self._graph_workspace = Workspace(self._program, dtype, self.device)
        self._graph_inputs = torch.empty(0, dtype=torch.int32, device=self.device)
        self._graph_views: dict[Shape, Inputs] = {}
        self._prepared_rows: set[int] = set()
        self._workspace = Workspace(self._program, dtype, self.device)
        self._inputs = torch.empty(0, dtype=torch.int32, device=self.device)

    def run(self, batch: PackedBatch) -> Tensor:
        """Hidden states [T, H] of the batch's tokens, in its order; valid until the next run. Does not wait."""
        return self.forward(self.upload(batch))[: len(batch.token_ids)]

    def upload(self, batch: PackedBatch) -> Inputs:
        """Describe the batch and queue the copy to the device. What was uploaded before is overwritten."""
        if self._graphs is not None:
            shape = graph_shape(batch, self._max_tokens, self._kernel_for, has_types=self._has_types)
            if shape is not None and self._has_graph_memory():
                return self._upload_for_graph(batch, shape)
        return self._upload(batch, exact_shape(batch, self._kernel_for(batch.max_seqlen, len(batch.token_ids))))

    def forward(self, inputs: Inputs) -> Tensor:
        """Hidden states [rows, H] of what was uploaded last."""
        if self._graphs is not None and inputs.at_rest:
            return self._graphs.run(inputs.shape, lambda: self._launch(inputs, self._graph_workspace))
        return self._launch(inputs, self._workspace)

    def prepare(self, batch: PackedBatch) -> bool:
        """Capture the graph for batches of this one's shape, if they may have one: none of them waits for it then.

        Kernels of ours have been loaded by a batch of each kind; cuBLAS has some of its own for each number of rows, so
        each is launched once here. Returns whether there may be more graphs.
        """
        if self._graphs is None or self._graphs.is_prepared:
            return False
        inputs = self.upload(batch)
        if not inputs.at_rest:
            return self._graphs is not None
        if inputs.shape.rows not in self._prepared_rows:
            self._prepared_rows.add(inputs.shape.rows)
            self._launch(inputs, self._graph_workspace)
        self._graphs.prepare(inputs.shape, lambda: self._launch(inputs, self._graph_workspace))
        return True

    def trim(self) -> None:
        """Give back memory that recent batches did not need. No work may be underway."""
        self._inputs = torch.empty(0, dtype=torch.int32, device=self.device)  # the next batch makes it again
        self._workspace.trim()

    def _upload(self, batch: PackedBatch, shape: Shape) -> Inputs:
        if len(self._inputs) < shape.num_values:
            self._inputs = torch.empty(2 * shape.num_values, dtype=torch.int32, device=self.device)
        self._staging.upload(batch, shape, self._inputs)
        return views(self._inputs, shape, lengths=np.diff(batch.cu_seqlens).tolist())

    def _has_graph_memory(self) -> bool:
        """Graphs hold addresses, so their memory is made once, for the largest shape. Without it there are none."""
        if len(self._graph_inputs):
            return True
        largest = Shape(GRAPH_ROWS, GRAPH_SLOTS, GRAPH_ROWS, has_types=True, kernel=AttentionKernel.SHORT)
        try:
            self._graph_workspace.reserve(GRAPH_ROWS)
            self._graph_inputs = torch.empty(largest.num_values, dtype=torch.int32, device=self.device)
        except torch.OutOfMemoryError as error:
            log.warning("graphs_off", error=str(error).partition("\n")[0])
            self._graphs = None
            self._graph_workspace.arena.release()
            return False
        return True

    def _upload_for_graph(self, batch: PackedBatch, shape: Shape) -> Inputs:
        """To where every graph reads."""
        self._staging.upload(batch, shape, self._graph_inputs)
        inputs = self._graph_views.get(shape)
        if inputs is None:
            inputs = self._graph_views[shape] = views(self._graph_inputs, shape, at_rest=True)
        return inputs

    def _launch(self, inputs: Inputs, workspace: Workspace) -> Tensor:
        kernels = GpuKernels(inputs, self._tables, self._products)
        return self._program.run(kernels.by_name(), workspace.buffers(inputs.shape.rows))
