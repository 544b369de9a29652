"""The parts of FBGEMM that the compute benches use. Importing this module imports FBGEMM, so import it late."""

import warnings

with warnings.catch_warnings():
    # FBGEMM's training module imports deprecated modules of FBGEMM.
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", FutureWarning)
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

#: FBGEMM's fused optimizers by the names that tasks use. Its CPU kernels (1.8) have no Adam and do not read bf16.
OPTIMIZERS = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}

#: FBGEMM's storage types by the names that tables use.
PRECISIONS = {"fp32": SparseType.FP32, "fp16": SparseType.FP16}

__all__ = ["OPTIMIZERS", "PRECISIONS", "ComputeDevice", "EmbeddingLocation", "SplitTableBatchedEmbeddingBagsCodegen"]
