"""What ``headrace run`` runs: a pipeline from files of rows, through a handler, to files of predictions."""
