"""The kernel's own TCP under a policy, and its programs."""
