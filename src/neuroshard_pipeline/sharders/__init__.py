"""Sharders: each maps a sharding problem to a placement; the registry predicts its cost and returns a plan.

A problem is a task with cost models and a memory model. A placement is a list of shards and their ranks. Rivals are
published sharders with which this project's sharders are compared.

- `base`: the `Sharder` interface and `SharderSettings`
- `neuroshard`: the search of [Zha2023], alone or with local search (`neuroshard_plus`)
- `whole_step`: the search over all sharding types; `variants`: the best plan over variants of a task, for
  example with sequence tables cut into different tiers
- `random`, `greedy`: baselines
- `torchrec`: TorchRec's planner as a rival, with its own numbers or with numbers that `perf_fit` fits to cost models
- `embark`: HugeCTR's planner as a rival; `embark_rows`: how it holds tables (whole, cut by rows, or replicated)
- `in_host_memory`: plans with tables in host memory
- `usable_types`: the sharding types among which sharders may choose
- `milp`: integer programming
- `policies`: `autoshard` and `dreamshard`, the learned rivals
- `registry`: `SHARDERS`, `make_sharder`, `shard` (one task), `solve_all` (all sharders
  on all tasks), `ordered_by_links` (one plan on unequal links)
"""
