"""When a batch leaves. Pure: no threads, and no time but what is told."""
