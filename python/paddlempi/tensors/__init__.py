"""Describers: how to read the memory of a tensor, one file for each framework or protocol.

They stand beside the fronts and not in them, for to import a front is to enter it into its
framework. :mod:`paddlempi._buffer` imports a describer when it first sees such a tensor; by then
the framework is there.
"""
