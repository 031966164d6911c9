"""Ray: clusters, placement, ranks, engine and trainer."""
