"""Learned rivals: policies that place whole tables one after the other, trained with policy gradients.

- `episode`: the game of placing the tables of a task in descending order of predicted cost; what a policy observes
- `networks`: AutoShard's and DreamShard's networks, for NumPy and PyTorch
- `policy`: `Policy` (weights in memory and on disk), `Policies`, `load_policies`
- `sharder`: a policy as a sharder
- `params`, `tasks`: settings of training, and the tasks to train on
- `training`: REINFORCE; the only file that needs PyTorch
"""
