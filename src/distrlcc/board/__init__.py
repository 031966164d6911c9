"""A page on loopback: runs while they learn, what a sender does on any link, maps of links."""
