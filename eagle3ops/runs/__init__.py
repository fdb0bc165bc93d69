"""Run directories, events, the content-addressed store, leases and the ledger."""
