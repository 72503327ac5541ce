"""What of a program of Paddle goes on after a reform: ``paddlempi.paddle.elastic``.

``front`` is the job. There is a part for each kind of object: ``models``, ``optimizers`` and
``generators`` keep what a step changes, give it back if the step is lost, and take the state of one
rank. ``shards`` is a model whose optimizer's states are divided. docs/elastic.md has the whole.
"""
