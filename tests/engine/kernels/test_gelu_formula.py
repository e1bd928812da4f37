"""The GELU of activation.cu, operation by operation in float32, for every half and bfloat16 value.

Its polynomial is that of the source. It is the minimax fit of log2 Phi(-t) on [0, 13.2], degree 9, found by linear
programming over a Chebyshev basis with a tolerance of 2^-12 for t < 5.8 (times what subnormal halves forgive), and of
bfloat16's 2^-9 beyond.
"""

import math
import re
from importlib import resources

import numpy as np
import numpy.typing as npt
import pytest

Float32 = npt.NDArray[np.float32]

SOURCE = (resources.files("penstock.engine.kernels") / "activations.cuh").read_text("utf-8")
FORMULA = SOURCE[SOURCE.index("struct Gelu {") : SOURCE.index("struct GeluTanh")]
NUMBER = r"(-?\d+\.\d+(?:e[-+]\d+)?)f"
COEFFICIENTS: Float32 = np.array(
    re.findall(rf"log2_phi = {NUMBER};", FORMULA) + re.findall(rf"fmaf\(log2_phi, t, {NUMBER}\)", FORMULA),
    dtype=np.float32,
)
LARGEST_T = np.float32(re.findall(rf"min_nan\(fabsf\(x\), {NUMBER}\)", FORMULA)[0])
SMALLEST_NORMAL = 2.0**-126


def fma(a: Float32, b: Float32, c: Float32 | np.float32) -> Float32:
    return (a.astype(np.float64) * b.astype(np.float64) + np.float64(c)).astype(np.float32)


def flushed(x: Float32) -> Float32:
    """As -ftz=true has it."""
    return np.where(np.abs(x) < SMALLEST_NORMAL, np.float32(0), x)


def gelu(x: Float32, exp2_error: float) -> Float32:
    x = flushed(x)
    t = np.minimum(np.abs(x), LARGEST_T)
    log2_phi = np.full_like(t, COEFFICIENTS[0])
    for coefficient in COEFFICIENTS[1:]:
        log2_phi = fma(log2_phi, t, coefficient)
    power = flushed((np.exp2(log2_phi.astype(np.float64)) * (1 + exp2_error)).astype(np.float32))
    return flushed((np.maximum(x, 0).astype(np.float64) - t.astype(np.float64) * power).astype(np.float32))


def exact_gelu(x: Float32) -> npt.NDArray[np.float64]:
    wide = x.astype(np.float64)
    erfc = np.array([math.erfc(value) for value in -wide / math.sqrt(2)])
    exact: npt.NDArray[np.float64] = 0.5 * wide * erfc
    return exact


def to_bfloat16(x: Float32) -> npt.NDArray[np.uint16]:
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def ulps(a: npt.NDArray[np.uint16], b: npt.NDArray[np.uint16]) -> npt.NDArray[np.int64]:
    """How many representable numbers apart: sign and magnitude as integers in order."""
    ordered = [np.where(bits < 0x8000, bits.astype(np.int64), 0x8000 - bits.astype(np.int64)) for bits in (a, b)]
    apart: npt.NDArray[np.int64] = np.abs(ordered[0] - ordered[1])
    return apart


def test_the_formula_is_the_sources() -> None:
    assert len(COEFFICIENTS) == 10
    assert "return fmaf(-t, exp2_approx(log2_phi), max_nan(x, 0.f));" in FORMULA


@pytest.mark.parametrize("exp2_error", [-(2.0**-22), 0, 2.0**-22])
def test_every_half_is_within_one_ulp(exp2_error: float) -> None:
    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    x = x[np.isfinite(x)]
    computed = gelu(x.astype(np.float32), exp2_error).astype(np.float16)
    apart = ulps(computed.view(np.uint16), exact_gelu(x.astype(np.float32)).astype(np.float16).view(np.uint16))
    assert apart.max() <= 1
    assert (apart > 0).mean() < 0.01  # nearly all are the rounded exact value


@pytest.mark.parametrize("exp2_error", [-(2.0**-22), 0, 2.0**-22])
def test_every_bfloat16_is_within_one_ulp(exp2_error: float) -> None:
    x = (np.arange(65536, dtype=np.uint32) << 16).view(np.float32)
    x = x[np.isfinite(x)]
    exact, computed = exact_gelu(x), gelu(x, exp2_error)
    apart = ulps(to_bfloat16(computed), to_bfloat16(exact.astype(np.float32)))
    normal = np.abs(exact) >= 2.0**-122
    assert apart[normal].max() <= 1
    assert np.abs(computed - exact)[~normal].max() < 2.0**-122
