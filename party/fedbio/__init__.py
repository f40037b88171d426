"""The FedBiO family at a party."""
