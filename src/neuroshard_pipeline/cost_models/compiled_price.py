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
    most rows of a call are equal to an earlier one, whose costs are copied.
    """
    (members, pressures, outputs), num_once, directions = weight.shape, once.shape[1], launch.shape[2]
    width, costs = (sums.shape[1] - 1) // members, np.empty((members, len(sums), directions))
    pressure, (first, place) = np.empty(pressures), distinct_rows(sums, sums.shape[1] - 1)
    for row in range(len(sums)):
        equal = first[place[row]]
        for member in range(members):
            own = sums[row, member * width : (member + 1) * width]
            if equal < row:
                costs[member, row] = costs[member, equal]
                continue
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
def distinct_rows(rows: FloatArray, columns: int) -> tuple[IntArray, IntArray]:  # pragma: no cover
    """Indices of distinct rows (D,), and for each row the place of its equal among them, (R,).

    Only the first `columns` count. Rows are compared with one earlier row of the same hash; if another row came between
    them, two equal rows may both count as distinct.
    """
    mask = 2 ** math.ceil(math.log2(2 * len(rows) + 1)) - 1
    earlier, bits = np.full(mask + 1, -1), rows.view(np.int64)
    first, place, found = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64), 0
    for row in range(len(rows)):
        mixed = 0
        for column in range(columns):
            mixed = 31 * mixed + bits[row, column]
        slot = mixed * _MIXING >> 40 & mask
        equal, earlier[slot] = earlier[slot], row
        column = 0
        while equal >= 0 and column < columns and bits[row, column] == bits[equal, column]:
            column += 1
        if equal >= 0 and column == columns:
            place[row] = place[equal]
        else:
            first[found], place[row] = row, found
            found += 1
    return first[:found], place
