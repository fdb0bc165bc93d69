"""Is the drafter worth it? Its loads, what the field's own tool says, divergences, and the alarm on accept length."""
