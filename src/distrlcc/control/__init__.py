"""Congestion controllers, each written once: compiled functions over one flow's flat state."""
