"""Events become counters and distributions."""
