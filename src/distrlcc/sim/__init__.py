"""The link model, traces and scenarios, the compiled simulator and its slow judge."""
