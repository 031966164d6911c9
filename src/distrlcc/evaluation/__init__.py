"""Proof: schemes and policies on held-out links, measured, summed up and shown."""
