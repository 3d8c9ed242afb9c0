"""E8M0, the scale of MX formats: a byte e stands for 2^(e - 127), and 255 for not-a-number (OCP MX 1.0, 5.4.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NAN = 255
BIAS = 127
_VALUES = np.append(np.ldexp(np.float32(1.0), np.arange(NAN) - BIAS), np.float32(np.nan))


def decode(scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The factors, in the shape of `scales`; 0 is 2^-127, which float32 holds as a subnormal number."""
    return _VALUES[scales]
