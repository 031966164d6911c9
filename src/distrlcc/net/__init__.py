"""Real packets: the emulator's links, devices and namespaces."""
