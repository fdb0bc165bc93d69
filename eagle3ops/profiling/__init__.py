"""Where does the time of a decode step go? Traces of the torch profiler, read, attributed and told."""
