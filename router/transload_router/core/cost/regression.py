"""Linear times learned online: non-negative, forgetting, shrunk towards a prior, robust.

**Theory.** A time is a sum of coefficients times features, all at least zero. Observations are
weighted by the inverse square of the predicted time, so that relative errors count: 10 ms of 20 ms
weigh as much as 1 s of 2 s. Each new observation fades the former ones. The prior takes part as a
number of made-up observations at typical sizes, which never fade; so a destination that is seldom
asked drifts back to what the fleet is like, and is asked again. One observation that is far off
counts in proportion to one over its distance, so that a hiccup moves little. Several in a row that
are far off to the same side are news, not noise: they count in full, and the past fades quickly.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from math import sqrt

Vector = tuple[float, ...]

# The last 1 / (1 - FADE) observations are what a fit sees.
FADE = 0.97
# Beyond this relative error an observation's weight falls with its distance.
MAX_ERROR = 0.5
# So many such errors in a row, all too long or all too short, are a change.
CHANGE = 3
# What the past keeps with each observation of a change.
CHANGE_FADE = 0.7
# So many first observations are fitted one by one, later ones so many together: a fit takes 15 us
# on a 2 GHz EPYC core, and a request brings six. What is far off is fitted at once.
FITTED_SINGLY = 32
FITTED_TOGETHER = 8
# Added to predicted times in weights, so that tiny ones do not drown all others.
FLOOR_S = 1e-4


class Regression:
    """Coefficients of one destination or pair.

    Args:
        typical: Feature vectors at which the prior is believed; as many observations as those
            are made up from it, times `strength`.
        strength: How many times.
    """

    __slots__ = ("_found", "_gram", "_moments", "_streak", "_strength", "_typical", "num_observed")

    def __init__(self, typical: Sequence[Vector], strength: float) -> None:
        self._typical = typical
        self._strength = strength
        size = len(typical[0])
        self._gram = [[0.0] * size for _ in range(size)]
        self._moments = [0.0] * size
        self._found: Vector | None = None
        self._streak = 0
        self.num_observed = 0

    def observe(self, features: Vector, seconds: float, expected_s: float) -> None:
        """Take in one observation; `expected_s` is what the present coefficients give."""
        scale = expected_s + FLOOR_S
        robust, fade = self._judge((seconds - expected_s) / scale)
        weight = robust / (scale * scale)
        for index, row in enumerate(self._gram):
            at = features[index] * weight
            for column, feature in enumerate(features):
                row[column] = fade * row[column] + at * feature
            self._moments[index] = fade * self._moments[index] + at * seconds
        self.num_observed += 1

    def _judge(self, error: float) -> tuple[float, float]:
        """How much an observation of this relative error counts, and what the past keeps."""
        if abs(error) <= MAX_ERROR:
            self._streak = 0
            return 1.0, FADE
        side = 1 if error > 0 else -1
        self._streak = self._streak + side if self._streak * side > 0 else side
        if abs(self._streak) < CHANGE:
            return MAX_ERROR / abs(error), FADE
        return 1.0, CHANGE_FADE

    @property
    def is_due(self) -> bool:
        """Whether what was observed since the last fit is worth another one."""
        count = self.num_observed
        return count <= FITTED_SINGLY or count % FITTED_TOGETHER == 0 or self._streak != 0

    def fade(self, share: float) -> None:
        """Let what was observed count less, as time passes without news."""
        self._gram = [[share * cell for cell in row] for row in self._gram]
        self._moments = [share * moment for moment in self._moments]

    def fit(self, prior: Vector) -> Vector:
        """The coefficients, given those of whom this one is thought to resemble."""
        gram = [row[:] for row in self._gram]
        moments = self._moments[:]
        found = self._found or prior
        for features in self._typical:
            expected_s = dot(prior, features)
            # Where it has turned out to take longer, errors of the prior weigh like those found.
            weight = self._strength / (max(expected_s, dot(found, features)) + FLOOR_S) ** 2
            for index, row in enumerate(gram):
                at = features[index] * weight
                for column, feature in enumerate(features):
                    row[column] += at * feature
                moments[index] += at * expected_s
        self._found = _least_squares(gram, moments)
        return self._found


def dot(left: Vector, right: Vector) -> float:
    """The sum of products."""
    total = 0.0
    for one, other in zip(left, right, strict=True):
        total += one * other
    return total


def _least_squares(gram: list[list[float]], moments: list[float]) -> Vector:
    """The best non-negative solution, by trying which coefficients are zero.

    With at most three of them there are at most seven cases; the first that is feasible and
    whose left-out ones would not help is the optimum of this convex problem.
    """
    size = len(moments)
    best, best_value = (0.0,) * size, 0.0
    for free in _CASES[size]:
        solved = _SOLVE[len(free)](gram, moments, *free)
        if solved is None or min(solved) < 0.0:
            continue
        # Half the squared error, less a constant: at a stationary point -moments . x / 2.
        value = 0.0
        for x, i in zip(solved, free, strict=True):
            value -= x * moments[i]
        if value < best_value:
            full = [0.0] * size
            for x, i in zip(solved, free, strict=True):
                full[i] = x
            best, best_value = tuple(full), value
            if len(free) == size:
                break
    return best


# Most free coefficients first: if all may be free, nothing else is better.
_CASES = {
    size: [free for count in range(size, 0, -1) for free in combinations(range(size), count)]
    for size in (1, 2, 3)
}
# Below this the rest of a unit diagonal is rounding: the matrix is singular.
_SINGULAR = 1e-12


# Written out, since a fit is part of every request: a loop over indices takes six times as long.


def _solve_one(gram: list[list[float]], right: list[float], i: int) -> Vector | None:
    return (right[i] / gram[i][i],) if gram[i][i] > 0.0 else None


def _solve_two(gram: list[list[float]], right: list[float], i: int, j: int) -> Vector | None:
    """Cholesky's way after scaling to a unit diagonal; None where it is singular."""
    if gram[i][i] <= 0.0 or gram[j][j] <= 0.0:
        return None
    scale_i, scale_j = sqrt(gram[i][i]), sqrt(gram[j][j])
    ij = gram[i][j] / (scale_i * scale_j)
    rest = 1.0 - ij * ij
    if rest < _SINGULAR:
        return None
    m_i = right[i] / scale_i
    y = (right[j] / scale_j - ij * m_i) / rest
    return (m_i - ij * y) / scale_i, y / scale_j


def _solve_three(
    gram: list[list[float]], right: list[float], i: int, j: int, k: int
) -> Vector | None:
    """Likewise."""
    if gram[i][i] <= 0.0 or gram[j][j] <= 0.0 or gram[k][k] <= 0.0:
        return None
    scale_i, scale_j, scale_k = sqrt(gram[i][i]), sqrt(gram[j][j]), sqrt(gram[k][k])
    ij = gram[i][j] / (scale_i * scale_j)
    ik = gram[i][k] / (scale_i * scale_k)
    rest_j = 1.0 - ij * ij
    if rest_j < _SINGULAR:
        return None
    jk = gram[j][k] / (scale_j * scale_k) - ij * ik
    rest_k = 1.0 - ik * ik - jk * jk / rest_j
    if rest_k < _SINGULAR:
        return None
    m_i = right[i] / scale_i
    m_j = right[j] / scale_j - ij * m_i
    z = (right[k] / scale_k - ik * m_i - jk / rest_j * m_j) / rest_k
    y = (m_j - jk * z) / rest_j
    return (m_i - ij * y - ik * z) / scale_i, y / scale_j, z / scale_k


_SOLVE: dict[int, Callable[..., Vector | None]] = {1: _solve_one, 2: _solve_two, 3: _solve_three}
