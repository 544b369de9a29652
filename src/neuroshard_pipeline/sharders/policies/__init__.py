"""Learned rivals: policies that place whole tables one after the other, trained with policy gradients.

- `episode`: the game: a task's units in descending predicted cost, what a rank looks like at each step, memory masks
- `networks`: AutoShard's and DreamShard's networks, for NumPy and PyTorch alike
- `policy`: `Policy` (weights on disk and in play), `Policies`, `load_policies`
- `sharder`: a policy as a sharder
- `params`, `tasks`: settings of training, and the tasks that it draws
- `training`: REINFORCE; the only file that needs PyTorch
"""
