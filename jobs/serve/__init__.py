"""Is the drafter served? The engine as the pipeline says, and, for experiments, with layers it was not trained on."""
