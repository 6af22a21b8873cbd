"""What is run: each module one workload."""
