"""Sharders: whatever maps a sharding task to a plan.

- `base`: the `Sharder` interface and `SharderSettings`
- `random`, `greedy`: baselines
- `torchrec`, `embark`, `milp`: the rivals of others
- `policies`: `autoshard` and `dreamshard`, the learned rivals
- `neuroshard`: the search of [Zha2023]; `neuroshard_plus`: with local search
- `registry`: `SHARDERS`, `make_sharder`, `shard` (one task), `solve_all` (all sharders on all tasks),
  `ordered_by_links` (one plan on unequal links)
- `evaluation`: plans as samples to measure; predicted and measured costs side by side
- `measured`: the campaigns that measure plans, resumable
- `summary`: sharders compared; `bootstrap`, `pairs`: one against another, and how sure that is
"""
