"""What runs in other processes than the benchmark's: each module imports no more than is needed there."""
