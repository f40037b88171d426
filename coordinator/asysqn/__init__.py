"""AsySQN at the coordinator."""
