"""Detrended fluctuation analysis written out point by point, by another route than ours."""

import math

import numpy as np
from numpy.typing import NDArray


def slow_dfa(series: NDArray[np.float64], order: int) -> float:
    """Return the exponent by polyfit on every window and polyfit on the logarithms."""
    n = len(series)
    mean = math.fsum(series) / n
    profile = [math.fsum(x - mean for x in series[: k + 1]) for k in range(n)]
    least = max(order + 2, 3)
    sizes = sorted({int(size) for size in np.geomspace(least, n // 2, 8)})
    heights = []
    for size in sizes:
        starts = [k * size for k in range(n // size)]
        starts += [n - (k + 1) * size for k in range(n // size)]
        squares = []
        for start in starts:
            window = np.array(profile[start : start + size])
            place = np.arange(size)
            trend = np.polyval(np.polyfit(place, window, order), place)
            squares += [float(r) ** 2 for r in window - trend]
        heights.append(math.sqrt(math.fsum(squares) / len(squares)))
    return float(np.polyfit(np.log(sizes), np.log(heights), 1)[0])
