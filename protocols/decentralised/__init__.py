"""What the decentralised algorithms share: the clock's ranges of steps, and vectors between neighbours."""
