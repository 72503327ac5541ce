"""An elastic job of torch on two hosts, whose rank 1 is killed in a backward: DDP goes on."""

from __future__ import annotations

import os
import signal

import paddlempi.torch
import ranks_report
import torch

STEPS, AT, VICTIM = 20, 5, 1


def main() -> None:
    torch.manual_seed(0)
    facts: ranks_report.Facts = {}
    with paddlempi.torch.elastic(timeout=30) as job:
        facts["rank"] = first = job.rank
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(400, 300))
        optimizer = torch.optim.Adam(model.parameters())
        job.attach(model, optimizer)
        for step in job.steps(STEPS):
            with step:
                loss = model(torch.randn(16, 400)).square().mean()
                if (first, step.number, job.size) == (VICTIM, AT, 3):
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        weights = [p.detach().double().sum().item() for p in model.parameters()]
        facts |= {"size": job.size, "done": job.done, "weights": weights}
        facts["generation"] = job.generation
    ranks_report.write(facts)


main()
