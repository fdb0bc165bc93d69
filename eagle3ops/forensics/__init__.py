"""Why did it fail? Many logs of many ranks in, one root cause out, or that none is there."""
