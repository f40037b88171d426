"""What crosses, one folder for each algorithm, and what their messages share."""
