"""Scripts of our own questions; the log beside them has the answers."""
