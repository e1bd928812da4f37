"""`penstock worker --model null` that answers texts: `python -m penstock.ops.bench.bulk.echo_worker worker …`.

The vector of a text is a function of the text, so that a row with the answer to another row shows. Nothing is computed.
"""

import sys
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.engine import NullEngine
from penstock.engine.types import BatchOutput, Engine, PackedBatch
from penstock.ops.cli.main import main
from penstock.producer.prompts import Prompts
from penstock.producer.special_frame import SpecialFrame
from penstock.producer.tokenization import Encoded
from penstock.producer.wire.messages import Text
from penstock.worker import process
from penstock.worker.model_settings import ModelSettings

PROGRAM = (sys.executable, "-m", "penstock.ops.bench.bulk.echo_worker")
DIM = 2
_BITS = 14  # of a checksum in each token: the null engine's vocabulary has more ids


def marks_of(texts: Sequence[Text]) -> npt.NDArray[np.int32]:
    """[n, 2]: the answer to each text."""
    sums = np.array([zlib.crc32(repr(text).encode()) for text in texts], np.uint32)
    return np.stack([sums & ((1 << _BITS) - 1), (sums >> _BITS) & ((1 << _BITS) - 1)], axis=1).astype(np.int32)


class EchoEngine(NullEngine):
    """The vector of a sequence is its two ids."""

    def run(self, batch: PackedBatch) -> BatchOutput:
        """Calibration's sequences have other lengths; nothing reads their results."""
        rows = [ids[:DIM].astype(np.float32) for ids in np.split(batch.token_ids, batch.cu_seqlens[1:-1])]
        return BatchOutput(rows=[np.resize(row, DIM) for row in rows], device_s=0.0)


class EchoTokenizer:
    """Stands for `Tokenizer`: the two ids of a text are its checksum."""

    prompts = Prompts()
    frame = SpecialFrame()

    async def encode_async(self, texts: Sequence[Text], **_: Any) -> list[Encoded]:
        return [Encoded(ids, None) for ids in marks_of(texts)]

    def close(self) -> None:
        pass


def _load(settings: ModelSettings) -> Engine:
    return EchoEngine(DIM, name=settings.served_name or settings.model)


if __name__ == "__main__":
    process.load = _load
    process.load_tokenizer = lambda settings, info: EchoTokenizer()  # type: ignore[attr-defined,assignment,return-value]  # what it uses
    main()
