"""Sans-IO sender and receiver of congestion-controlled datagrams: no clock, no socket."""
