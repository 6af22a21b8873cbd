"""The shared words: contract, results, errors, configuration, events. Standard library only."""
