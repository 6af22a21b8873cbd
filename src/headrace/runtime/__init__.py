"""The one place where batching, failures, hosting and metrics meet: engines adapt to this."""
