"""The functions of `lab_plans` and `plan_annealing` without compilation, because compiling takes half a minute."""

import numba

numba.config.DISABLE_JIT = True
try:
    from lab_plans import evaluate
    from plan_annealing import anneal
    from search_ceiling import DEVICE, NETWORK, decoded, encoded, job_of, machine_of
finally:
    numba.config.DISABLE_JIT = False

__all__ = ["DEVICE", "NETWORK", "anneal", "decoded", "encoded", "evaluate", "job_of", "machine_of"]
