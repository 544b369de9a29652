"""Trains a DLRM and DHEN under the plans of several sharders, and compares samples per second and losses.

| module | holds | needs the extra `torchrec` |
| --- | --- | --- |
| `params` | `TrainTaskParams`, `TrainingParams`, `TrainCheckError` | no |
| `problem` | `state_problem`, `solve_problem`: task, batches, plans | when called |
| `batches` | global batches, drawn or from a Criteo file | no |
| `run` | `train_under_plans`: times steps under all plans in turns, on real or on virtual ranks | in the ranks |
| `steppers` | the steps of a rank: whole models, and their parts alone | yes |
| `model`, `dhen` | the unsharded models | yes |
| `sharding` | a model sharded by a plan and a dense mode, and the memory of the dense network | yes |
| `summary` | `summarise_training` and the table of speeds | no |
"""
