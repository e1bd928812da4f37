"""The optional packages of `penstock logs`, imported when a command needs them."""

from types import ModuleType

from penstock.ops.logs.errors import MissingLibrary

_INSTALL = "pip install 'penstock[logs]'"


def polars() -> ModuleType:
    """Polars. Raises MissingLibrary."""
    try:
        import polars
    except ImportError as error:
        raise MissingLibrary(f"Reading logs needs polars, which is not installed: {_INSTALL}") from error
    return polars


def pyarrow() -> ModuleType:
    """PyArrow, which unpacks logs. Raises MissingLibrary."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingLibrary(f"A compressed log needs pyarrow, which is not installed: {_INSTALL}") from error
    return pyarrow  # type: ignore[no-any-return]  # pyarrow has no types


def pyplot() -> ModuleType:
    """Matplotlib, drawing without a display. Raises MissingLibrary."""
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingLibrary(f"A report needs matplotlib, which is not installed: {_INSTALL}") from error
    return pyplot
