"""Ways to cut a model over a job: what a step of each would cost, and how to apply one."""
