"""The paper's search written plainly: it handles one list of shards, one cap on columns, one shard, one rank at a time.

It follows the text at the top of `search/beam.py` and `search/placement.py`, but without constraints and `exact_fit`.
It shares no code with the search except the types, the formula of the memory model and the cost models, which it calls
for one rank at a time (compute) or for one plan at a time (communication).
"""

from __future__ import annotations

import math

import numpy as np

from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.params import SearchParams
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask


class ScalarOracle:
    """An item is (table index, width), a state is a list of items, a placement is (cost in ms, items of every rank)."""

    def __init__(self, task: ShardingTask, models, memory: MemoryModel, params: SearchParams):
        self.task, self.models, self.memory, self.params = task, models, memory, params
        self.limits = memory.limits(task)
        self.embeddings = {}
        self.single_costs = {}
        mean = sum(table.embedding_dim for table in task.tables) / task.world_size
        self.caps = []
        for index in range(params.num_caps):
            share = index / max(params.num_caps - 1, 1)
            ratio = params.min_cap_ratio + share * (params.max_cap_ratio - params.min_cap_ratio)
            self.caps.append(math.floor(ratio * mean + 1e-9))

    # ---- costs

    def embedding(self, item):
        if item not in self.embeddings:
            shard = Shard(self.task.tables[item[0]], 0, item[1])
            self.embeddings[item] = self.models.compute.shard_embeddings([shard], self.task.batch_size)[0]
        return self.embeddings[item]

    def rank_compute_ms(self, items) -> float:
        if not items:
            return 0.0
        total = self.embedding(items[0])
        for item in items[1:]:
            total = total + self.embedding(item)
        forward_ms, backward_ms = self.models.compute.costs_from_sums(total[None, :], self.task.batch_size)[0]
        return float(forward_ms) + float(backward_ms)

    def single_cost(self, item) -> int:
        if item not in self.single_costs:
            self.single_costs[item] = units(self.rank_compute_ms([item]))
        return self.single_costs[item]

    def item_bytes(self, item) -> int:
        return self.memory.shard_bytes(Shard(self.task.tables[item[0]], 0, item[1]), self.task)

    def plan_cost_ms(self, items_of_rank) -> float:
        compute = [self.rank_compute_ms(items) for items in items_of_rank]
        dims = [sum(width for _, width in items) for items in items_of_rank]
        backward = self.models.comm.backward_ms(np.array(dims), self.task.batch_size)
        ready = [c + float(b) for c, b in zip(compute, backward, strict=True)]
        skew = [r - min(ready) for r in ready]
        forward = self.models.comm.forward_ms(np.array(dims), np.array(skew), self.task.batch_size)
        return max(r + float(f) for r, f in zip(ready, forward, strict=True))

    # ---- placement

    def placement_order(self, state):
        return sorted(state, key=lambda item: (-self.single_cost(item), item[0], -item[1]))

    def greedy(self, state, cap):
        """Items of every rank, or None if a shard has no feasible rank."""
        world = range(self.task.world_size)
        items_of_rank = [[] for _ in world]
        used = [0 for _ in world]
        dims = [0 for _ in world]
        for item in self.placement_order(state):
            best_rank, best_cost = None, math.inf
            for rank in world:
                if used[rank] + self.item_bytes(item) > self.limits[rank] or dims[rank] + item[1] > cap:
                    continue
                cost = units(self.rank_compute_ms(items_of_rank[rank]))
                if cost < best_cost:
                    best_rank, best_cost = rank, cost
            if best_rank is None:
                return None
            items_of_rank[best_rank].append(item)
            used[best_rank] += self.item_bytes(item)
            dims[best_rank] += item[1]
        return items_of_rank

    def pack_by_size(self, state):
        """Items of every rank and the items left over."""
        free = list(self.limits)
        items_of_rank = [[] for _ in free]
        left_over = []
        for item in sorted(self.placement_order(state), key=lambda item: -self.item_bytes(item)):
            rank = free.index(max(free))
            if self.item_bytes(item) > free[rank]:
                left_over.append(item)
            else:
                free[rank] -= self.item_bytes(item)
                items_of_rank[rank].append(item)
        return items_of_rank, left_over

    def place(self, state):
        best = None
        for cap in self.caps:
            items_of_rank = self.greedy(state, cap)
            if items_of_rank is not None:
                cost = self.plan_cost_ms(items_of_rank)
                if best is None or units(cost) < units(best[0]):
                    best = (cost, items_of_rank)
        if best is None:
            items_of_rank, left_over = self.pack_by_size(state)
            if not left_over:
                best = (self.plan_cost_ms(items_of_rank), items_of_rank)
        return best

    # ---- columns

    def candidates(self, state):
        distinct = sorted({item for item in state if item[1] % 8 == 0}, key=lambda item: (item[0], -item[1]))
        count = self.params.num_candidates
        largest = sorted(distinct, key=lambda item: -self.item_bytes(item))[:count]
        most_expensive = sorted(distinct, key=lambda item: -self.single_cost(item))[:count]
        return [item for item in distinct if item in largest or item in most_expensive]

    def halve(self, state, item):
        child = list(state)
        child.remove(item)
        return [*child, (item[0], item[1] // 2), (item[0], item[1] // 2)]

    def search(self):
        """Best (cost in ms, items of every rank), or None if whole tables do not fit and splits make no room."""
        state = [(index, table.embedding_dim) for index, table in enumerate(self.task.tables)]
        placement = self.place(state)
        if placement is None:
            state = self.make_room(state)
            placement = self.place(state) if state else None
        if placement is None:
            return None
        best = placement
        beam = [(state, placement)]
        for _ in range(self.params.max_steps):
            seen, children = set(), []
            for parent, _ in beam:
                for item in self.candidates(parent):
                    child = self.halve(parent, item)
                    key = tuple(sorted(child))
                    if key in seen:
                        continue
                    seen.add(key)
                    found = self.place(child)
                    if found is not None:
                        children.append((child, found))
            if not children:
                break
            beam = sorted(children, key=lambda child: units(child[1][0]))[: self.params.beam_width]
            if units(beam[0][1][0]) < units(best[0]):
                best = beam[0][1]
        return best

    def make_room(self, state):
        while True:
            state = self.placement_order(state)
            left_over = self.pack_by_size(state)[1]
            if not left_over:
                return state
            chosen = [item for item in left_over if item[1] % 8 == 0]
            if not chosen:
                halvable = [item for item in state if item[1] % 8 == 0]
                halvable.sort(key=lambda item: -self.item_bytes(item))
                chosen = halvable[: math.ceil(len(halvable) / 20)]
            if not chosen:
                return None
            for item in chosen:
                state = self.halve(state, item)


def units(cost_ms: float) -> int:
    return round(cost_ms * 1e9)
