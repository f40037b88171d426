"""AsySQN at a party."""
