"""What of a program of torch goes on after a reform: ``paddlempi.torch.elastic``.

``front`` is the job. There is a part for each kind of object: ``modules``, ``optimizers``,
``generators``, ``batches`` keep what a step changes, give it back if the step is lost, and take the
state of one rank (``sharing``). ``shards`` is for models that no rank has whole; ``tensors`` says
what a rank has of them. docs/elastic.md has the whole.
"""
