"""Trainings that go on when a rank dies: ``paddlempi.elastic``.

* ``job`` is the training, as a rank sees it; ``parts`` what of it moves; ``lost`` which errors say
  that a rank is lost.
* ``divided`` is the part of what is divided among the ranks, in ``boxes``.
* ``coordinator`` says who is in the next world; ``hub`` has its connections, ``link`` a rank's end
  of one, and ``wire`` how messages travel.
* ``places`` says where the coordinator is: in ``python -m paddlempi run --elastic``.

docs/adr/0068-elastic-jobs.md has the reasons.
"""
