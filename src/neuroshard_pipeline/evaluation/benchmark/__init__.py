"""The benchmark bench: every sharder on the same suites of tasks, judged by measurement.

- `params`: what decides suites, contest and verdicts
- `suites`: sharding tasks by suite; `tight`: tasks that only column splits fit, with the proof
- `solving`: plans in shards that resume; `measuring`: which of them are measured
- `task_costs`: one cost per task and sharder; `judging`: who is best, and whether that can be said
- `wording`: tables in words
"""
