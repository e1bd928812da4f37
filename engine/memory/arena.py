"""Device memory of the plans: chunks, allocated on demand and freed by `trim`."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from penstock.engine.memory.lifetimes import ALIGNMENT
from penstock.engine.memory.plan import CHUNK_BYTES, MemoryPlan

_SLACK = 1.5  # above K_SCALE, so that a chunk just added is not freed


class Buffer(Protocol):
    """An allocation of device memory, such as a torch.Tensor."""

    def data_ptr(self) -> int:
        """Its address: a multiple of ALIGNMENT, constant while the buffer is held."""
        ...


B = TypeVar("B", bound=Buffer)


class Arena(Generic[B]):
    """Chunks of one device, for one stream: plans placed in it share the memory, so their work must run in order.

    One thread calls it; several planners may share it. `place` never frees. Once the largest batch has been placed it
    allocates nothing: a smaller batch is the same packing on a smaller scale. (Rounding to ALIGNMENT can break this by
    a few bytes, which whole chunks nearly always absorb.) An arena whose addresses are captured in graphs is never
    trimmed.
    """

    def __init__(self, allocate: Callable[[int], B]) -> None:
        """allocate: of a number of bytes, which are free with the last reference; if it raises, nothing has changed."""
        self._allocate = allocate
        self._buffers: list[B] = []
        self._most_bytes = 0  # that a plan used since the last `trim`
        self.chunk_bytes: tuple[int, ...] = ()  # hand it to MemoryPlanner.plan

    @property
    def held_bytes(self) -> int:
        """Device memory held now."""
        return sum(self.chunk_bytes)

    @property
    def buffers(self) -> tuple[B, ...]:
        """The chunks, in the order of `MemoryPlan.region_chunk`."""
        return tuple(self._buffers)

    def place(self, plan: MemoryPlan) -> None:
        """Allocate the chunks of the plan that are missing. It was made for the present `chunk_bytes`."""
        num_held = len(self._buffers)
        if plan.chunk_bytes[:num_held] != self.chunk_bytes:
            raise RuntimeError("The plan was made for other chunks than the arena holds. This is a bug.")
        for num_bytes in plan.chunk_bytes[num_held:]:
            self._grow(num_bytes)
        self._most_bytes = max(self._most_bytes, plan.used_bytes)

    def trim(self) -> bool:
        """Free every chunk if the plans since the last call needed far less. True: no plan is placed any more.

        Called now and then, while no work on the device uses the arena. Memory of one large plan is freed at the second
        call after it.
        """
        needed_bytes, self._most_bytes = -(-self._most_bytes // CHUNK_BYTES) * CHUNK_BYTES, 0
        if self.held_bytes <= _SLACK * needed_bytes:
            return False
        self.release()
        return True

    def release(self) -> None:
        """Free every chunk, under the conditions of `trim`."""
        self.chunk_bytes = ()
        self._buffers.clear()

    def _grow(self, num_bytes: int) -> None:
        buffer = self._allocate(num_bytes)
        if buffer.data_ptr() % ALIGNMENT:
            raise RuntimeError(f"The allocator's address is no multiple of {ALIGNMENT}. This is a bug.")
        self._buffers.append(buffer)
        self.chunk_bytes = (*self.chunk_bytes, num_bytes)
