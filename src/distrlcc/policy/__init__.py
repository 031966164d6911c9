"""Networks, normalisation and policy files; importing this package imports no torch."""
