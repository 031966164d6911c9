"""Says whether a machine, or a cluster's machines, are fit for distributed training."""
