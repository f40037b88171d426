"""What the decentralised algorithms share: the clock's stretches, and vectors between neighbours."""
