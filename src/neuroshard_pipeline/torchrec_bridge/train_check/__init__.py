"""Trains a DLRM under the plans of several sharders and compares speeds and losses.

| module | holds | needs the extra `torchrec` |
| --- | --- | --- |
| `params` | `TrainTaskParams`, `TrainingParams`, `TrainCheckError` | no |
| `problem` | `state_problem`, `solve_problem`: task, batches, plans | when called |
| `batches` | global batches, drawn or from a Criteo file | no |
| `run` | `train_under_plans`: trains under all plans in turns, one process per rank | in the ranks |
| `model` | the model, unsharded and sharded by a plan | yes |
| `summary` | `summarise_training` and the table of speeds | no |
"""
