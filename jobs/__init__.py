"""One module per job: its Spec, its plan(), its run()."""
