"""Pipeline train_policies: trains the policies of AutoShard and DreamShard on the predictions of the cost models."""
