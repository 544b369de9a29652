"""The parts of FBGEMM that the compute benches use. Importing this module imports FBGEMM, so import it late."""

import logging
import warnings
from typing import Any, final

import torch

logging.disable(logging.WARNING)  # each of FBGEMM's 15 libraries warns that it does not know which torch it needs
warnings.filterwarnings("ignore", "TBE B200 optimization")  # its kernels say which path they took
with warnings.catch_warnings():
    # FBGEMM's training module imports deprecated modules of FBGEMM.
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", FutureWarning)
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )
logging.disable(logging.NOTSET)

#: FBGEMM's fused optimizers by the names that tasks use. Its CPU kernels (1.8) have no Adam and do not read bf16.
OPTIMIZERS = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}

#: FBGEMM's storage types by the names that tables use.
PRECISIONS = {"fp32": SparseType.FP32, "fp16": SparseType.FP16}


@final
class FusedLookup(SplitTableBatchedEmbeddingBagsCodegen):
    """FBGEMM's training module without memory of its own for weights and optimizer state.

    FBGEMM (1.6 to 1.8) allocates and fills weights in its constructor; an argument prevents this, but on the CPU only.
    A GPU would need memory for the weights twice, so this class overrides the method that allocates them. Assign
    tensors to the data of `weights_dev` and `momentum1_dev` before a call (on the CPU: `weights_host` and so on).
    """

    def _apply_split(self, split: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._apply_split(split._replace(dev_size=0, host_size=0, uvm_size=0), prefix, *args, **kwargs)
        if split.host_size:  # a parameter as in training; with a plain tensor, autograd takes 1.5 us less
            setattr(self, f"{prefix}_host", torch.nn.Parameter(getattr(self, f"{prefix}_host")))

    def release(self) -> None:
        """Forget the ids of the last call. FBGEMM keeps them for its GPU cache of rows that lie in host memory."""
        self._indices = self._offsets = self.lxu_cache_locations_empty


__all__ = ["OPTIMIZERS", "PRECISIONS", "ComputeDevice", "EmbeddingLocation", "FusedLookup", "PoolingMode"]
