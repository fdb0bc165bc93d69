"""Which drafter, on which engine, is better beyond noise? Who takes part, and each held against each."""
