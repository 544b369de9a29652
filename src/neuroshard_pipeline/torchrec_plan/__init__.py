"""Writes shards and ranks as sharding plans of TorchRec, and reads such plans. The package `search` imports it.

| module | holds | imports TorchRec |
| --- | --- | --- |
| `extra` | `require_torchrec`: imports the optional extra, or raises an error that names it | when called |
| `writer` | `torchrec_form`: module path → table → the fields of `ParameterSharding`; `Devices` | no |
| `module_paths` | `module_paths`: the TorchRec module of every table; refuses tables that no model can have | no |
| `structures` | `sharding_plan`, `read_sharding_plan`: TorchRec's `ShardingPlan` | yes |
| `modules` | tables and optimizer of an unsharded model | yes |
| `comm_precision` | `torchrec_sharders`: TorchRec's sharders with a number format for the links | yes |
| `left_out` | tables and memory of the modules that a plan leaves out | no |
| `stock_planner` | `stock_plan`: the plan of TorchRec's own planner | yes |
| `perf_formula` | TorchRec's cost formulas, and the bandwidths and coefficients in them | no |
| `perf_config` | `FittedPerfConfig`: gives fitted bandwidths and coefficients to TorchRec's planner | yes |
"""
