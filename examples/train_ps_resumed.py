"""Train with embeddings on servers, save, die, and go on from what was saved.

    python -m paddlempi run --restarts 1 -- mpirun -np 3 \\
        python -m paddlempi run --roles trainer:2,pserver:1 examples/train_ps_resumed.py --die-at 50
"""

import argparse
import io
import os
import signal

import torch
from paddlempi import ps

parser = argparse.ArgumentParser()
parser.add_argument("--cuts", default="cuts", help="the folder, which all servers must see")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--die-at", type=int, help="the step in which a trainer of attempt 0 dies")
options = parser.parse_args()

ps.init()  # a rank that only serves stays in it
torch.manual_seed(0)
words = ps.Embedding(None, 16, name="words", optimizer=ps.Adagrad(0.1), initializer=ps.Normal())
head = torch.nn.Linear(16, 1)
optimizer = ps.DistributedOptimizer(torch.optim.Adam(head.parameters(), 0.01))
me, trainers = ps.trainer_group().rank(), len(ps.trainers())

begin = 0
if ps.latest(options.cuts):  # None in the first attempt
    told = ps.restore(options.cuts)  # the servers read their rows, and the states of these
    mine = torch.load(io.BytesIO(told["extra"]))  # what the trainers have themselves
    head.load_state_dict(mine["head"])
    optimizer.load_state_dict(mine["optimizer"])
    begin = told["step"]
    if me == 0:
        print(f"goes on at step {begin}", flush=True)

for step in range(begin, options.steps):
    if step % 20 == 0 and step > begin:
        extra = io.BytesIO()
        torch.save({"head": head.state_dict(), "optimizer": optimizer.state_dict()}, extra)
        ps.save(options.cuts, step, keep=2, extra=extra.getvalue())
    first = os.environ.get("PADDLEMPI_RESTART", "0") == "0"
    if step == options.die_at and first and me == trainers - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    data = torch.Generator().manual_seed(1000 * step + me)  # each step has its own samples
    ids = torch.randint(0, 500, (64, 4), generator=data)
    target = torch.cos(ids.double()).mean(1, keepdim=True).float()
    loss = torch.nn.functional.mse_loss(head(words(ids).mean(1)), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

if me == 0:
    print(f"loss {loss.item():.6e}, rows {len(words.table)}", flush=True)
