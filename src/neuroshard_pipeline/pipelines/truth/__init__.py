"""Times TorchRec's embedding module under several sharders' plans: `kedro run --pipeline truth`."""
