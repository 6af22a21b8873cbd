"""What becomes of a batch that fails. Pure: what is tried is given, time is not looked at."""
