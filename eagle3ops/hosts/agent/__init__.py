"""What answers at the far end? Reads requests, answers, streams; holds nothing that matters."""
