"""Will this engine load this drafter, and feed it what it was trained on? Config and headers alone, no weights."""
