"""Searches for plans with low predicted cost.

A task passes through the files as follows. `problem` combines it with cost models and a memory model. It computes one
*shard embedding* per (table, width): the numbers by which the compute cost model describes a shard. `beam` proposes
column splits. For each proposal, `placement` assigns the ranks; its inner loop is in `greedy_runs`, and it uses
`packing` if memory is scarce. If packing finds no first placement, `exact_fit` looks for one. `local_search`
improves the best result with the changes listed in `moves`. The result is a `plan.Placement`, which `price.price_plan`
turns into a validated `plan.Plan` with its predicted cost. If a step cost model prices all sharding types,
`spread_choice` proposes sets of tables to *spread*, which means that they become replicas or have their rows cut.
`spread` places them. The search then places the remaining, column-wise tables. For a plan, `changes` finds the best
single changes that could still be made, `explain` describes it in words, and `rank_order` reorders its ranks.

- `models`: protocols of the cost models, and the unit in which searches compare costs
- `memory`: `MemoryModel`, the bytes that a shard takes on a rank; `host_memory`: which tables go to host memory
- `params`: `SearchParams`, `LocalSearchParams`, and the defaults of all parameters
- `room`: refuses tasks that are too large for the memory of this machine, or whose search would take too long
- `units`: tables, or tables kept together, with their constraints
- `problem`: `Problem`, every distinct (table, width) of a task with its embedding, cost and memory; `shard_cache`
- `plan`: `Plan`; `plan_data`: its data and invariants, `Placement`, `PlanCost`; `cover`: conditions on shards and ranks
- `parts`: the parts of a step's cost, for every sharding type; `step_prices`: what a shard adds to them, for a search
- `volumes`: bytes that the ranks of a plan send
- `spread_choice`: which tables are spread; `spread_estimate`: cost of a step with them; `spread`: their ranks;
  `host_load`: cost that a table adds to the ranks of a host if its rows are cut over them; `host_blocks`: local search
  over such tables
- `tier_choice`, `tier_prices`: variants of a task whose sequence tables are cut into tiers by popularity of rows
- `presplit`: starting points whose tables are split beforehand
- `price`: `start_skew_ms` and the other formulas of the embedding cost, `price_plan`, `priced`
- `beam`: beam search over column splits
- `placement`: greedy grid search for the ranks of shards; `greedy_runs`: its compiled inner loop
- `packing`: packing by bytes, and the errors for tasks that do not fit; `halving`: halves shards until they fit
- `exact_fit`: integer programming that decides whether a task fits if packing finds no placement
- `local_search`, `moves`: local search and its moves; `halves`: local search that balances the ranks in the forward
  half and in the backward half of a step
- `changes`, `explain`, `assumptions`: explanation of a plan
- `rank_order`: the order of ranks on unequal links
"""
