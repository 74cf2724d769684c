"""Linear times learned online: non-negative, forgetting, shrunk towards a prior, robust.

**Theory.** A time is a sum of coefficients times features, all at least zero. Observations are
weighted by the inverse square of the predicted time, so that relative errors count: 10 ms of 20 ms
weigh as much as 1 s of 2 s. Each new observation fades the former ones. The prior takes part as a
number of made-up observations at typical sizes, which never fade; so a destination that is seldom
asked drifts back to what the fleet is like, and is asked again. One observation that is far off
counts in proportion to one over its distance, so that a hiccup moves little and a slow engine is
still found within some requests.
"""

from collections.abc import Sequence
from itertools import combinations

Vector = tuple[float, ...]

# The last 1 / (1 - FADE) observations are what a fit sees.
FADE = 0.97
# Beyond this relative error an observation's weight falls with its distance.
MAX_ERROR = 0.5
# Added to predicted times in weights, so that tiny ones do not drown all others.
FLOOR_S = 1e-4


class Regression:
    """Coefficients of one destination or pair.

    Args:
        typical: Feature vectors at which the prior is believed; as many observations as those
            are made up from it, times `strength`.
        strength: How many times.
    """

    __slots__ = ("_gram", "_moments", "_strength", "_typical", "num_observed", "weight")

    def __init__(self, typical: Sequence[Vector], strength: float) -> None:
        self._typical = typical
        self._strength = strength
        size = len(typical[0])
        self._gram = [[0.0] * size for _ in range(size)]
        self._moments = [0.0] * size
        self.num_observed = 0
        self.weight = 0.0

    def observe(self, features: Vector, seconds: float, expected_s: float) -> None:
        """Take in one observation; `expected_s` is what the present coefficients give."""
        scale = expected_s + FLOOR_S
        error = abs(seconds - expected_s) / scale
        robust = 1.0 if error <= MAX_ERROR else MAX_ERROR / error
        weight = robust / (scale * scale)
        for row, moment_of in zip(self._gram, range(len(features)), strict=True):
            at = features[moment_of] * weight
            for column, feature in enumerate(features):
                row[column] = FADE * row[column] + at * feature
            self._moments[moment_of] = FADE * self._moments[moment_of] + at * seconds
        self.weight = FADE * self.weight + 1.0
        self.num_observed += 1

    def fade(self, share: float) -> None:
        """Let what was observed count less, as time passes without news."""
        self._gram = [[share * cell for cell in row] for row in self._gram]
        self._moments = [share * moment for moment in self._moments]
        self.weight *= share

    def fit(self, prior: Vector) -> Vector:
        """The coefficients, given those of whom this one is thought to resemble."""
        gram = [row[:] for row in self._gram]
        moments = self._moments[:]
        for features in self._typical:
            expected_s = dot(prior, features)
            weight = self._strength / (expected_s + FLOOR_S) ** 2
            for index, row in enumerate(gram):
                at = features[index] * weight
                for column, feature in enumerate(features):
                    row[column] += at * feature
                moments[index] += at * expected_s
        return _least_squares(gram, moments)


def dot(left: Vector, right: Vector) -> float:
    """The sum of products."""
    return sum(one * other for one, other in zip(left, right, strict=True))


def _least_squares(gram: list[list[float]], moments: list[float]) -> Vector:
    """The best non-negative solution, by trying which coefficients are zero.

    With at most three of them there are at most seven cases; the first that is feasible and
    whose left-out ones would not help is the optimum of this convex problem.
    """
    size = len(moments)
    best, best_value = (0.0,) * size, 0.0
    for num_free in range(size, 0, -1):
        for free in combinations(range(size), num_free):
            solved = _solve([[gram[i][j] for j in free] for i in free], [moments[i] for i in free])
            if solved is None or min(solved) < 0.0:
                continue
            # Half the squared error, less a constant: at a stationary point -moments . x / 2.
            value = -sum(x * moments[i] for x, i in zip(solved, free, strict=True))
            if value < best_value:
                full = [0.0] * size
                for x, i in zip(solved, free, strict=True):
                    full[i] = x
                best, best_value = tuple(full), value
        if best_value < 0.0 and num_free == size:
            break
    return best


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gauss with scaling to a unit diagonal; None where it is singular."""
    size = len(right)
    scales = [matrix[i][i] ** 0.5 for i in range(size)]
    if min(scales) <= 0.0:
        return None
    rows = [
        [matrix[i][j] / (scales[i] * scales[j]) for j in range(size)] + [right[i] / scales[i]]
        for i in range(size)
    ]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        if abs(rows[pivot][i]) < 1e-12:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, size):
            factor = rows[r][i] / rows[i][i]
            for j in range(i, size + 1):
                rows[r][j] -= factor * rows[i][j]
    solution = [0.0] * size
    for i in range(size - 1, -1, -1):
        rest = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - rest) / rows[i][i]
    return [x / scale for x, scale in zip(solution, scales, strict=True)]
