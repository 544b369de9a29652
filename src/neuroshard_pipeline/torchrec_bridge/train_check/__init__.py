"""Trains a DLRM under the plans of several sharders and compares speeds and losses.

| module | holds | needs the extra `torchrec` |
| --- | --- | --- |
| `params` | `TrainTaskParams`, `TrainingParams` | no |
| `problem` | `state_problem`, `solve_problem`: task, batches, plans | when called |
| `batches` | global batches, drawn or from a Criteo file | no |
| `run` | `train_under_plans`: turns of all plans between real processes | in the ranks |
| `rank` | what one rank does | in the ranks |
| `model`, `sharded` | the model, and the model under a plan | yes |
| `summary` | `summarise_training`, `training_table` | no |
"""
