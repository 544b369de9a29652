"""The formula of `compute.price`, compiled: a search prices a few shard sets at a time, tens of thousands of times."""

import math

import numpy as np
from numba import njit

from neuroshard_pipeline.arrays import FloatArray


@njit(cache=True)
def member_costs(
    sums: FloatArray, floor: float, launch: FloatArray, once: FloatArray, weight: FloatArray, bias: FloatArray
) -> FloatArray:  # pragma: no cover
    """Costs (E, N, D) of shard sets in ms by every member, from the rows of `ComputeCostModel.costs_from_sums`.

    `floor` is added to a pressure before its logarithm is taken. `launch`, `once` and `weight` are powers of e of the
    weights of `compute.price`, and `bias` is that of its gates.
    """
    (members, pressures, outputs), num_once, directions = weight.shape, once.shape[1], launch.shape[2]
    width, costs = (sums.shape[1] - 1) // members, np.empty((members, len(sums), directions))
    pressure = np.empty(pressures)
    for member in range(members):
        for row in range(len(sums)):
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
