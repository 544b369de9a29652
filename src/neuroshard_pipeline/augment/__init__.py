"""Draws the table pool, its variations, samples of lookups and collectives to measure, and sharding tasks to solve.

A sample is what one measurement runs: the lookups of one rank, a forward and a backward all-to-all, or one reduction.

- `published`: statistics that Meta published about its lookup data; `pool`: tables generated with these statistics
  or read from a file
- `variation`: derived and public tables that are added to the pool
- `compute_draws`, `varied_draws`, `comm_draws`, `reduction_draws`: samples to measure
- `task_draws`: sharding tasks to solve
- `drawing`: parameter types and helpers that `variation` and the draws share
"""
