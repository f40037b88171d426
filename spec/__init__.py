"""Run specifications: what a YAML file may say, validated where it is read."""
