"""What a training step will cost, from what was measured of a machine (docs/plan.md).

``machine`` is the file that ``python -m paddlempi bench --calibrate`` writes, ``costs`` says from
it how long collectives and steps take, and ``plans`` is what is said of the ways to cut a model.
The front that knows models is :mod:`paddlempi.torch.planner`.
"""
