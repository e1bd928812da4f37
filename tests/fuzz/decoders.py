"""Every decoder of this project: samples that it reads, and the errors that it may raise for others."""

from tests.fuzz.cells import CELLS
from tests.fuzz.decoder import Decoder
from tests.fuzz.files import FILES
from tests.fuzz.json_requests import JSON_REQUESTS
from tests.fuzz.wire import WIRE

DECODERS: tuple[Decoder, ...] = (*WIRE, *JSON_REQUESTS, *CELLS, *FILES)
