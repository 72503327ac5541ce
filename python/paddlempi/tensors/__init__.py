"""Describers: how to read the memory of a tensor, one file for each framework or protocol.

They are not in the fronts, because importing a front registers it with its framework.
:mod:`paddlempi._buffer` imports a describer when it first sees a tensor of its framework, which is
imported by then.
"""
