"""What do the outputs of a run say, to somebody who looks at them? Read where they are, told as plain JSON."""
