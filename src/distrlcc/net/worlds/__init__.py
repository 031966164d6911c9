"""Emulated links that an agent steps in real time, over UDP or the kernel's TCP."""
