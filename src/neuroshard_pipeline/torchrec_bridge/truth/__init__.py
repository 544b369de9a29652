"""Times steps of TorchRec's embedding modules alone under the plans of several sharders."""
