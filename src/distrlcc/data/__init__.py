"""Trajectories on disk: Arrow files that are larger than memory, and the manifest over them."""
