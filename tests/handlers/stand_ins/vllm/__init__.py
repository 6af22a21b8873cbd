"""Stands in for vLLM in tests: its server, and nothing else."""
