"""Search for hyperparameters on Ray Tune: population-based training, Optuna's samplers and ASHA."""
