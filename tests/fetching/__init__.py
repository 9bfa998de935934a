"""Inputs from the network, against real servers on loopback."""
