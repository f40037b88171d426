"""The FedBiO family at the coordinator."""
