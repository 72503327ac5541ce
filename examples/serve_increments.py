"""A job that trains, and a process that serves its newest rows while the training goes on.

    mpirun -np 3 python -m paddlempi run --roles trainer:2,pserver:1 \\
        examples/serve_increments.py --model model
    python examples/serve_increments.py --model model --serve 127.0.0.1:8080
    curl 'http://127.0.0.1:8080/scores?user=3&items=1,2,5'       # {"step": 60, "scores": [...]}

The job learns which items users like (a matrix factorisation, in NumPy). Every few steps it saves a
cut, and writes what has changed since the cut before into the folder ``--model``: first a full
export, then increments. The process that serves reads the full export, and takes over increments
as they come. An answer is of one step: its user and its items are of the same cut.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
from paddlempi import Error, ps

USERS, ITEMS, DIM, BATCH = 500, 300, 8, 256
FULL, INCREMENT = "full-{:08d}", "from-{:08d}-to-{:08d}"


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="the folder between the two")
    parser.add_argument("--serve", metavar="HOST:PORT", help="serve there; without it: train")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="save and export every so many steps")
    parser.add_argument("--keep", type=int, default=2, help="cuts that stay; 0: all")
    return parser.parse_args()


def train(options: argparse.Namespace) -> None:
    ps.init()
    if not ps.is_trainer():  # a rank that only serves rows does not come here: run --roles
        return
    start = {"optimizer": ps.Adagrad(0.2), "initializer": ps.Uniform(-0.1, 0.1)}
    users = ps.RemoteTable("users", DIM, **start)
    items = ps.RemoteTable("items", DIM, **start)
    me = ps.trainer_group().rank()
    liked = np.random.default_rng(0).normal(size=(2, max(USERS, ITEMS), DIM))  # what is to learn
    random = np.random.default_rng(1 + me)
    options.model.mkdir(exist_ok=True)
    for step in range(1, options.steps + 1):
        seen = 1 + step * min(USERS, ITEMS) // options.steps  # users and items come by and by
        user, item = random.integers(seen, size=(2, BATCH))
        wanted = (liked[0, user] * liked[1, item]).sum(1, dtype=np.float32)
        of_user, of_item = users.pull(user), items.pull(item)
        error = ((of_user * of_item).sum(1) - wanted)[:, None] / BATCH
        ps.push([(users, user, error * of_item), (items, item, error * of_user)])
        if step % options.every == 0:
            ps.save(options.model / "cuts", step, keep=options.keep)
            if me == 0:
                publish(options.model, step, step - options.every)
    ps.shutdown()


def publish(folder: Path, step: int, before: int) -> None:
    """Write a full export, or an increment. A file has its name when it is whole."""
    if before == 0:
        ps.export(folder / "cuts", folder / FULL.format(step), step=step)
    else:
        to = folder / INCREMENT.format(before, step)
        ps.export(folder / "cuts", to, step=step, since=before)
    print(f"published step {step}", flush=True)


class Handler(BaseHTTPRequestHandler):
    tables: ps.Tables  # set when they are loaded

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        try:
            if asked.path != "/scores":
                raise LookupError(f"{asked.path} is not there: ask /scores?user=3&items=1,2")
            query = parse_qs(asked.query, strict_parsing=True)
            user = np.array([int(query["user"][0])])
            item = np.array([int(id) for id in query["items"][0].split(",")])
            users, items = self.tables["users"], self.tables["items"]
            with self.tables.held() as step:  # no increment comes in between the two
                # Questions make no rows, whatever they ask for.
                of_user = users.pull(user, missing="initial")
                of_items = items.pull(item, missing="initial")
            self.answer(200, {"step": step, "scores": (of_items @ of_user[0]).tolist()})
        except (ValueError, LookupError, Error) as error:
            self.answer(400, {"error": str(error)})

    def answer(self, status: int, said: dict[str, object]) -> None:
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing for a request."""


def serve(options: argparse.Namespace) -> None:
    host, _, port = options.serve.rpartition(":")
    ended = threading.Event()
    while not (full := sorted(options.model.glob("full-????????"))):
        ended.wait(0.1)
    Handler.tables = tables = ps.load(full[-1])
    server = ThreadingHTTPServer((host, int(port)), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"serves step {tables.step} at {host}:{server.server_address[1]}", flush=True)
    try:
        while True:
            begins = INCREMENT.format(tables.step, 0).removesuffix(f"{0:08d}")
            if there := sorted(options.model.glob(f"{begins}????????")):
                print(f"serves step {tables.apply(there[-1])}", flush=True)
            else:
                ended.wait(0.1)
    except KeyboardInterrupt:
        server.shutdown()


if __name__ == "__main__":
    chosen = options_of()
    sys.exit(serve(chosen) if chosen.serve else train(chosen))
