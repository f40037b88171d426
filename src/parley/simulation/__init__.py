"""A federation in one process: any algorithm's program and roles, with bytes at every boundary between them."""

from parley.simulation.clock import on_simulated_clock
from parley.simulation.driver import Outcome, Saved, Simulation
from parley.simulation.peers import memory_peers
from parley.simulation.runs import Holding, PooledRun, holdings_of, simulation_of, train_pooled, train_tables

__all__ = [
    "Holding",
    "Outcome",
    "PooledRun",
    "Saved",
    "Simulation",
    "holdings_of",
    "memory_peers",
    "on_simulated_clock",
    "simulation_of",
    "train_pooled",
    "train_tables",
]
