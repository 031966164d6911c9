"""Training by many equal processes: group, membership, launcher, stragglers."""
