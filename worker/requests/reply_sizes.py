"""Sizes of the rows of a reply, as msgpack and as JSON: bytes at most, and of generated text an estimate."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from penstock.engine.types import ModelInfo
from penstock.producer.wire.messages import BIT_DTYPES, DTYPES, TOKEN_VECTOR_TASKS, Request
from penstock.producer.wire.plain_rows import plain_json

_BITS = 8  # of a byte
_ITEM = {"float32": 4, "float16": 2, "int8": 1, "uint8": 1}  # of a vector; others are signs


class ReplySizes(ABC):
    """Of the replies of one model, in one form."""

    score: int  # of one of `classify` or `rerank`
    listed: int  # of a row of vectors or tokens, beside these
    sparse: int  # of a row of sparse vectors, beside ids and weights
    all_vectors: int  # of a row of embed_all, beside its vectors
    generation: int  # of a row of generate, beside its tokens and their text
    generated_token: int
    generated_text: int  # of one token
    span: int

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self._label_bytes = self._of_labels(info.labels)

    def row(self, request: Request) -> int:
        """Bytes of each row, without those of `token` and `generated`; of sparse vectors a part."""
        match request.task:
            case "embed":
                return self._vector(request)
            case "embed_all":
                return self._vector(request) + self.all_vectors
            case "classify":
                return self._classes(request)
            case "rerank":
                return self.score
            case "sequence":
                return 0  # `SequenceRequests` bounds it, which knows the graphs
            case "embed_sparse":
                return self.sparse
            case "token_classify" | "embed_tokens":
                return self.listed
            case task:
                raise RuntimeError(f"The size of a row is not known for {task!r}. This is a bug.")

    def generated(self, request: Request, max_new_tokens: int) -> int:
        """Bytes of each row of `generate`."""
        text_bytes = self.generated_text if request.text is not None else 0
        return self.generation + max_new_tokens * (self.generated_token + text_bytes)

    def token(self, request: Request) -> int:
        """Bytes of each token of `token_classify`, `embed_tokens` and `embed_all`."""
        if request.task in TOKEN_VECTOR_TASKS:
            return self._token_vector(request)
        return self._token_classes(request) + (self.span if request.text is not None else 0)

    def names(self, request: Request) -> int:
        """Bytes of the labels of `token_classify` that a reply has once."""
        return 0

    @abstractmethod
    def _vector(self, request: Request) -> int: ...

    @abstractmethod
    def _token_vector(self, request: Request) -> int: ...

    @abstractmethod
    def _classes(self, request: Request) -> int: ...

    @abstractmethod
    def _token_classes(self, request: Request) -> int: ...

    @abstractmethod
    def _of_labels(self, labels: Sequence[str]) -> list[int]:
        """Of each label in a reply, the longest first."""

    def _labels_sent(self, request: Request) -> list[int]:
        """Bytes of the labels of one sequence or token, if these are the longest."""
        own = request.options.labels
        label_bytes = self._label_bytes if own is None else self._of_labels(own)
        return label_bytes[: request.options.most_labels or None]


class MsgpackSizes(ReplySizes):
    """As msgpack."""

    score, listed, sparse, all_vectors, span = 9, 4, 4, 8, 8
    generation, generated_token, generated_text = 20, 4, 8  # of text twice the mean of European languages
    _class, _string_head = 2, 5

    def names(self, request: Request) -> int:
        """See `ReplySizes`."""
        return sum(self._label_bytes) if request.task == "token_classify" else 0

    def _vector(self, request: Request) -> int:
        item = _ITEM.get(request.options.dtype)
        length = request.options.dimensions or self._info.dim
        return -(-length // _BITS) if item is None else length * item

    def _token_vector(self, request: Request) -> int:
        return self._info.token_dim * _ITEM[request.options.dtype]

    def _classes(self, request: Request) -> int:
        sent = self._labels_sent(request)
        return len(sent) * self.score + sum(sent)

    def _token_classes(self, request: Request) -> int:
        return len(self._labels_sent(request)) * (self._class + _ITEM[request.options.dtype])

    def _of_labels(self, labels: Sequence[str]) -> list[int]:
        return sorted([self._string_head + len(label.encode()) for label in labels], reverse=True)


class JsonSizes(ReplySizes):
    """As JSON, at the most digits that there may be. Values count with their commas."""

    score, listed, sparse, all_vectors, span = 17, 3, 30, 80, 40  # a float32 may be -0.0000123381615
    generation, generated_token, generated_text = 80, 8, 12  # some text is escaped
    _byte, _best = 5, 24

    def _vector(self, request: Request) -> int:
        length, dtype = request.options.dimensions or self._info.dim, request.options.dtype
        num_bytes = -(-length // _BITS) if dtype in BIT_DTYPES else length
        return self.listed + (length * self.score if dtype in DTYPES else num_bytes * self._byte)

    def _token_vector(self, request: Request) -> int:
        return self.listed + self._info.token_dim * self.score

    def _classes(self, request: Request) -> int:
        """The best label, and where there are several the lists of all."""
        sent = self._labels_sent(request)
        best = self._best + sent[0] + self.score
        return best if len(sent) == 1 else best + self._best + len(sent) * self.score + sum(sent)

    def _token_classes(self, request: Request) -> int:
        return self._classes(request)

    def _of_labels(self, labels: Sequence[str]) -> list[int]:
        return sorted([len(plain_json(label)) + 1 for label in labels], reverse=True)
