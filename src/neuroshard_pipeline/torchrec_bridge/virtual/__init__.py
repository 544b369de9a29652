"""Virtual ranks: TorchRec's code on more ranks than this machine has cores or GPUs, with a modelled network.

Every rank is a process of this machine, and gloo moves the data, so that results are right. A step's log has the CPU
time of every rank between its collectives, and the collectives with their bytes. A replay of the logs gives the time of
the step on a cluster whose ranks each have a core of this machine. The kernels are those of this CPU, and the time of
collectives is modelled. Ranks can also take turns on one GPU (`join_virtual_ranks`).

| module | holds |
| --- | --- |
| `log` | `RankLog`: what a rank did in a step; only one rank computes on a core at a time |
| `group` | `join_virtual_ranks`: the process group, which logs every collective |
| `copies` | `HostCollective`: a collective of gloo on copies in host memory of a GPU's tensors |
| `networks` | the times of collectives: `modelled_network` |
| `replay` | `slowdowns`: the machine's speed in every turn; `replayed_steps`: the times of ranks from their logs |
| `own` | `step_times`: the times of steps of a person's own model |

`truth.steps.measure_steps` has the argument `networks`, which runs the steps of plans in this way.
"""
