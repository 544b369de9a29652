"""Costs of reductions, the collectives with equal volumes for all ranks: reduce_scatter, all_gather and all_reduce.

A curve is the cost of one collective on one group of ranks at several sizes. A group is a number of ranks on a number
of hosts. The cost never falls with the size:

    0 bytes, or a single rank          0
    up to the smallest measured size   the cost of that size
    between two measured sizes         linear in the bytes
    beyond the largest measured size   linear in the bytes, with the slope between a quarter of that size and that size

The curve of another number of ranks is interpolated between the curves of the next smaller and the next larger group,
linearly in the logarithms of ranks and cost. Only groups with the most similar number of ranks per host are used. For a
group on several hosts, groups on one host are used only if no others were measured, and the reverse. If only one group
is used, it gives the costs of any number of ranks. Beyond the largest and below the smallest group, the trend of the
two nearest groups continues, but the cost never falls with more ranks, and grows at most in proportion to them.

`size_bytes` is the whole buffer of a rank, as in nccl-tests: the input of reduce_scatter, the output of all_gather,
and both of all_reduce. Shapes: K measured sizes of a curve, `...` any number of sizes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models.checkpoint import REMEDY
from neuroshard_pipeline.cost_models.intervals import OVERSHOOT_SLOPE
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.samples import Reduction

#: The slope beyond the largest size is taken over this factor, because a shorter stretch would mostly show noise.
_SLOPE_SPAN = 4.0
#: Part of the log half width of an interval for a group whose `density` differs by 1 or more from those of all measured
#: groups; smaller differences make it smaller. The half width is the root of the sum of squares of its parts.
_OTHER_HOSTS_LOG_ERROR = math.log(2)
#: `Group.density` of a group on one host; it is larger than that of every group on several hosts.
_ONE_HOST = 20.0


class Group(NamedTuple):
    """The ranks of a collective, and the hosts that they are on, with about equally many ranks on each."""

    world_size: int
    hosts: int

    @property
    def density(self) -> float:
        """A measure of the similarity of groups: the base-2 logarithm of the ranks per host, or `_ONE_HOST`."""
        return _ONE_HOST if self.hosts == 1 else math.log2(self.world_size / self.hosts)


def group_of(world_size: int, ranks_per_host: int | None) -> Group:
    """The group of `world_size` ranks that fill hosts in order; None stands for a single host."""
    return Group(world_size, 1 if ranks_per_host is None else -(-world_size // ranks_per_host))


@dataclass(frozen=True)
class Curve:
    """Cost of one collective on one group: (K,) costs, nowhere falling, at measured sizes, ascending.

    `log_error` is the part of an interval's log half width that is due to an unmeasured group; 0 if it is measured.
    """

    size_bytes: FloatArray
    cost_ms: FloatArray
    log_error: float = 0.0

    def at(self, size_bytes: FloatArray) -> FloatArray:
        """Cost of any sizes (...)."""
        sizes, costs = self.size_bytes, self.cost_ms
        before = max(int(np.searchsorted(sizes, sizes[-1] / _SLOPE_SPAN, side="right")) - 1, 0)
        slope = (costs[-1] - costs[before]) / max(sizes[-1] - sizes[before], 1.0)
        beyond = np.maximum(size_bytes - sizes[-1], 0.0)
        return np.where(size_bytes > 0, np.interp(size_bytes, sizes, costs) + slope * beyond, 0.0)


@dataclass(frozen=True)
class ReductionCosts:
    """Predicts the cost of reduce_scatter, all_gather and all_reduce; needs NumPy only.

    Attributes:
        curves: curve of every collective and measured group.
        log_error: per collective, 90th percentile of the absolute log error at every second measured size, if it is
            predicted from the other sizes.
        log_error_per_doubling: per collective, the same percentile for groups that are predicted from other groups,
            per factor of 2 between a group's number of ranks and that of the nearest other group.
    """

    curves: Mapping[Reduction, Mapping[Group, Curve]]
    log_error: Mapping[Reduction, float]
    log_error_per_doubling: Mapping[Reduction, float]
    _built: dict[tuple[Reduction, Group], Curve] = field(default_factory=dict, init=False, repr=False, compare=False)

    def predict_ms(
        self, collective: Reduction, size_bytes: ArrayLike, world_size: int, ranks_per_host: int | None = None
    ) -> FloatArray:
        """Cost in ms (...): time from the common start until the last rank has its result.

        Args:
            collective: one of `tables.samples.REDUCTIONS`.
            size_bytes: (...) the whole buffer (see the top of this file).
            world_size: ranks of the collective.
            ranks_per_host: number of ranks on each host; None if all ranks are on one host.

        Raises:
            CostModelError: a size is negative or not finite, or there is no curve for the collective.
        """
        sizes = np.asarray(size_bytes, dtype=np.float64)
        if not ((sizes >= 0) & np.isfinite(sizes)).all():
            raise CostModelError(f"size_bytes must be finite and at least 0, got {sizes}")
        if world_size <= 1:
            return np.zeros(sizes.shape)
        return self.curve(collective, group_of(world_size, ranks_per_host)).at(sizes)

    def interval_ms(
        self, collective: Reduction, size_bytes: ArrayLike, world_size: int, ranks_per_host: int | None = None
    ) -> FloatArray:
        """90 % prediction interval in ms (..., 2); arguments as for `predict_ms`.

        It widens beyond the largest measured size, and with the distance of the group from the nearest measured one.
        """
        cost = self.predict_ms(collective, size_bytes, world_size, ranks_per_host)
        if world_size <= 1:
            return np.zeros((*cost.shape, 2))
        curve = self.curve(collective, group_of(world_size, ranks_per_host))
        beyond = np.log(np.maximum(np.asarray(size_bytes, dtype=np.float64) / curve.size_bytes[-1], 1.0))
        known = math.hypot(self.log_error[collective], curve.log_error)
        factor = np.exp(np.hypot(known, OVERSHOOT_SLOPE * beyond))
        return np.stack([cost / factor, cost * factor], axis=-1)

    def curve(self, collective: Reduction, group: Group) -> Curve:
        """The curve of a group, measured or derived from the curves of other groups.

        Raises:
            CostModelError: there is no curve for the collective.
        """
        key = (collective, group)
        if key not in self._built:
            self._built[key] = self._curve_of(collective, group)
        return self._built[key]

    def _curve_of(self, collective: Reduction, group: Group) -> Curve:
        curves = self.curves.get(collective)
        if not curves:
            raise CostModelError(f"there are no costs of the collective {collective!r}; {REMEDY}")
        if group in curves:
            return curves[group]
        density = min((known.density for known in curves), key=lambda known: abs(known - group.density))
        worlds = {known.world_size: curve for known, curve in curves.items() if known.density == density}
        doublings = min(abs(math.log2(group.world_size / known)) for known in worlds)
        log_error = math.hypot(
            doublings * self.log_error_per_doubling[collective],
            _OTHER_HOSTS_LOG_ERROR * min(abs(density - group.density), 1.0),
        )
        if group.world_size in worlds or len(worlds) == 1:
            known = worlds.get(group.world_size) or next(iter(worlds.values()))
            return Curve(known.size_bytes, known.cost_ms, log_error)
        pairs = list(pairwise(sorted(worlds)))  # those around the group's world size, or else the nearest ones
        lower, upper = next((pair for pair in pairs if group.world_size < pair[1]), pairs[-1])
        return _between((lower, worlds[lower]), (upper, worlds[upper]), group.world_size, log_error)

    def to_json(self) -> dict[str, Any]:
        """JSON values from which `from_json` makes an equal model."""
        curves = [
            {
                "collective": collective,
                "world_size": group.world_size,
                "hosts": group.hosts,
                "size_bytes": curve.size_bytes.tolist(),
                "cost_ms": curve.cost_ms.tolist(),
            }
            for collective, groups in self.curves.items()
            for group, curve in groups.items()
        ]
        return {
            "curves": curves,
            "log_error": dict(self.log_error),
            "log_error_per_doubling": dict(self.log_error_per_doubling),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`.

        Raises:
            CostModelError: a field is missing.
        """
        try:
            curves: dict[Reduction, dict[Group, Curve]] = {}
            for entry in values["curves"]:
                sizes, costs = (np.array(entry[name], dtype=np.float64) for name in ("size_bytes", "cost_ms"))
                group = Group(entry["world_size"], entry["hosts"])
                curves.setdefault(entry["collective"], {})[group] = Curve(sizes, costs)
            return cls(curves, values["log_error"], values["log_error_per_doubling"])
        except KeyError as missing:
            raise CostModelError(f"costs of reductions: field {missing} is missing; {REMEDY}") from missing


def _between(lower: tuple[int, Curve], upper: tuple[int, Curve], world_size: int, log_error: float) -> Curve:
    """The curve of `world_size` ranks, from the curves of two other numbers of ranks."""
    (few, cheap), (many, dear) = lower, upper
    sizes = np.union1d(cheap.size_bytes, dear.size_bytes)
    log_few, log_many = np.log(cheap.at(sizes)), np.log(dear.at(sizes))
    span, step = math.log(many / few), math.log(world_size / few)
    growth = (log_many - log_few) / span  # exponent of the number of ranks
    if few < world_size < many:
        log_cost = log_few + growth * step
    elif world_size > many:
        log_cost = log_many + np.clip(growth, 0.0, 1.0) * (step - span)
    else:
        log_cost = log_few + np.clip(growth, 0.0, 1.0) * step
    return Curve(sizes, np.maximum.accumulate(np.exp(log_cost)), log_error)
