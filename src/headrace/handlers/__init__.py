"""One framework a file; each file imports the core and its framework, and says which extra brings it."""
