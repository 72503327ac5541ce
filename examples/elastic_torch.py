"""Data-parallel training that goes on when a rank is killed, on real data.

    python -m paddlempi run -np 3 --elastic 2 examples/elastic_torch.py          # then kill -9 one
    python -m paddlempi run -np 3 --elastic 2 examples/elastic_torch.py --kill 40     # it does so

The data are scikit-learn's handwritten digits (1,797 images of 8 x 8). Every sample of an epoch is
used once, whatever the number of ranks is meanwhile. The batch of a rank stays the same, so the
learning rate follows the number of ranks.
"""

import argparse
import os
import signal

import numpy as np
import paddlempi.torch
import torch
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

BATCH, RATE = 16, 0.05  # of one rank


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return the training and the test data, the same on every rank."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = torch.from_numpy((data.data[order] / 16).astype("float32"))
    labels = torch.from_numpy(data.target[order].astype("int64"))
    test_count = len(labels) // 5
    return (
        TensorDataset(images[test_count:], labels[test_count:]),
        TensorDataset(images[:test_count], labels[:test_count]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kill", type=int, default=-1, help="the step in which the last rank dies")
    options = parser.parse_args()
    torch.set_num_threads(1)
    train, test = digits()
    with paddlempi.torch.elastic(min_ranks=2) as job:
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        )
        model = DistributedDataParallel(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
        loader = DataLoader(train, batch_size=BATCH, sampler=paddlempi.torch.Sampler(train))
        batches = paddlempi.torch.Batches(loader)
        job.attach(model, optimizer, batches)

        @job.on_reform
        def follow(job: object) -> None:
            for group in optimizer.param_groups:
                group["lr"] = RATE * job.size

        for step in job.steps(options.steps):
            if step.number == 0:
                first = job.generation
            with step:
                images, labels = next(batches)
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                last = job.generation == first and job.rank == job.size - 1
                if step.number == options.kill and last:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.step()
        if job.rank == 0:
            images, labels = test.tensors
            right = (net(images).argmax(1) == labels).float().mean().item()
            print(f"{job.done} steps, the last on {job.size} ranks: {right:.1%} of the test data")


if __name__ == "__main__":
    main()
