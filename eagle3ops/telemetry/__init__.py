"""What is the machine doing? GPUs, processes, disks and pressure: sampled, recorded and played back."""
