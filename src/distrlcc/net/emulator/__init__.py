"""The emulator: links between devices of network namespaces, and the programs behind them."""
