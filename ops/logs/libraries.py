"""The optional packages of `penstock logs`, imported when a command needs them. Without one: MissingLibrary."""

import importlib
import signal
from types import ModuleType

from penstock.ops.logs.errors import MissingLibrary


def polars() -> ModuleType:
    """Polars. Its handler of SIGINT would let a read of standard input go on, and Ctrl-C wait for the next line."""
    library = _library("polars", "Reading logs")
    signal.siginterrupt(signal.SIGINT, True)
    return library


def pyarrow() -> ModuleType:
    """PyArrow, which unpacks logs."""
    return _library("pyarrow", "A compressed log")


def pyplot() -> ModuleType:
    """Matplotlib, drawing without a display."""
    _library("matplotlib", "A report").use("agg")
    return _library("matplotlib.pyplot", "A report")


def _library(name: str, needs_it: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        sentence = f"{needs_it} needs {package}, which is not installed: pip install 'penstock[logs]'"
        raise MissingLibrary(sentence) from error
