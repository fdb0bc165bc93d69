"""vLLM: how it is started, what it needs, how its log reads, and how it is asked."""
