"""The formula of `compute.price`, compiled: a search prices a few shard sets at a time, tens of thousands of times."""

import math

import numpy as np
from numba import njit

from neuroshard_pipeline.arrays import FloatArray, IntArray

#: 2**64 over the golden ratio, as a signed number: a product with it has well-mixed upper bits (Fibonacci hashing).
_MIXING = -7046029254386353131


@njit(cache=True)
def member_costs(
    sums: FloatArray, floor: float, launch: FloatArray, once: FloatArray, weight: FloatArray, bias: FloatArray
) -> FloatArray:  # pragma: no cover
    """Costs (E, N, D) of shard sets in ms by every member, from the rows of `ComputeCostModel.costs_from_sums`.

    `floor` is added to a pressure before its logarithm is taken. `launch`, `once` and `weight` are powers of e of the
    weights of `compute.price`, and `bias` is that of its gates. The states of a search differ in a few shards, so that
    most sums of a call are equal to an earlier one; a table of hashes finds these, and their costs are copied.
    """
    (members, pressures, outputs), num_once, directions = weight.shape, once.shape[1], launch.shape[2]
    width, costs = (sums.shape[1] - 1) // members, np.empty((members, len(sums), directions))
    mask = 2 ** math.ceil(math.log2(2 * len(sums) + 1)) - 1
    pressure, earlier, bits = np.empty(pressures), np.full(mask + 1, -1), sums.view(np.int64)
    for row in range(len(sums)):
        place = (31 * bits[row, 0] + bits[row, 1]) * _MIXING >> 40 & mask
        equal, earlier[place] = earlier[place], row
        if equal >= 0 and _are_equal(bits[row], bits[equal]):
            for member in range(members):
                for direction in range(directions):
                    costs[member, row, direction] = costs[member, equal, direction]
            continue
        for member in range(members):
            own = sums[row, member * width : (member + 1) * width]
            for number in range(pressures):
                pressure[number] = math.log(own[width - num_once - pressures + number] + floor)
            for direction in range(directions):
                cost = own[direction] + launch[member, 0, direction]
                for term in range(num_once):  # 1 as soon as one shard has the launch term
                    cost += min(own[width - num_once + term], 1.0) * once[member, term, direction]
                for gate in range(direction, outputs, directions):
                    opening = bias[member, 0, gate]
                    for number in range(pressures):
                        opening += pressure[number] * weight[member, number, gate]
                    cost += own[directions + gate] * 0.5 * (1.0 + math.tanh(0.5 * opening))
                costs[member, row, direction] = cost
    return costs


@njit(cache=True)
def _are_equal(one: IntArray, other: IntArray) -> bool:  # pragma: no cover
    """Whether two rows are equal but for their last number, which does not count; `np.array_equal` is slower."""
    column = 0
    while column < len(one) - 1 and one[column] == other[column]:
        column += 1
    return column == len(one) - 1
