"""Requests of the task `generate`: their options, checked by the model, and the keys of their sequences."""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.cache import KEY_BYTES, KeySpace
from penstock.engine.errors import InvalidOption
from penstock.engine.generation_options import GenerationOptions
from penstock.engine.types import Int32Array, ModelInfo, TaskOptions
from penstock.producer.errors import UnsupportedTask
from penstock.producer.languages import Languages
from penstock.producer.wire.generation import GivenOptions
from penstock.producer.wire.messages import Request, Uint32Array
from penstock.worker.requests.request import PendingRequest
from penstock.worker.requests.sequence_block import SequenceBlock

_SEED_BITS = 62
_MOST_KEPT = 64  # values in the lists of options that are kept for later requests

ReadOptions = Callable[[Mapping[str, Any]], GenerationOptions]  # raises InvalidOption, which names the option


class GenerationRequests:
    """Called by the stages `validate` and `prepare`, on the event loop."""

    def __init__(self, info: ModelInfo, read: ReadOptions, languages: Languages) -> None:
        """languages: of the model's tokenizer, which requests may name."""
        self._info = info
        self._languages = languages
        self._read_new = read
        self._read_kept = functools.lru_cache(maxsize=256)(lambda options: read(dict(options)))

    def options(self, request: Request) -> GenerationOptions:
        """The options of a request, the model's own included.

        Raises UnsupportedTask, which names the option or the language, and InvalidRequest for a target that is said
        twice.
        """
        given = _without_seed(self._languages.resolved(request.options.generation))
        try:
            is_long = sum([len(value) for _, value in given if isinstance(value, tuple)]) > _MOST_KEPT
            return self._read_new(dict(given)) if is_long else self._read_kept(given)
        except InvalidOption as error:
            raise UnsupportedTask(f"`opts.generation`: {error}") from error

    def sequences(self, request: PendingRequest, token_ids: Sequence[Int32Array | Uint32Array]) -> list[SequenceBlock]:
        """The sequences of a valid request, each a block. Sampling without a seed gets one for each, and is not stored.

        It is that of the record: a worker that answers the record again samples the same tokens.
        """
        options = self.options(request.message)
        given = dict(request.message.options.generation).get("seed")
        is_stored = given is not None or not options.do_sample
        # Every field of the options is in their text, the model's own too. They may be long, and are hashed once.
        text = hashlib.blake2b(str(options).encode(), digest_size=KEY_BYTES).hexdigest()
        sequences = []
        for index, ids in enumerate(token_ids):
            seed = 0 if not options.do_sample else _seed(request, index) if given is None else int(given)
            space = KeySpace(
                self._info.revision, self._info.dtype, "generate", None, None, None, generation=f"{text} {seed}"
            )
            task = TaskOptions("generate", generation=options, seed=seed)
            keys = (space.key(ids.tobytes()),)
            sequences.append(SequenceBlock(request, (index,), ids, (len(ids),), None, task, keys, is_stored))
        return sequences


def _seed(request: PendingRequest, index: int) -> int:
    """As random as the record's position in its topic."""
    digest = hashlib.blake2b(b"seed %d" % index, key=request.record.reply_key, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _SEED_BITS)


def _without_seed(options: GivenOptions) -> GivenOptions:
    return tuple([pair for pair in options if pair[0] != "seed"])
