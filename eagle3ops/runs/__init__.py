"""Run directories, events, the content-addressed store, the ledger and the supervisor."""
