"""What a run is and how it trains: configuration, state, loop, directory, recorder."""
