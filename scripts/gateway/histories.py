"""The clients of scripts/gateway/histories: they record what they do in the format of docs/history-format.md.

    histories.py POOL FOLDER KILLS SECONDS      the variable FARINDEX names the program

Starts two gateways on POOL, and processes with redis-py that work on both. Kills one gateway after the other with SIGKILL, and
starts it again, KILLS times, one every SECONDS. Writes the histories to FOLDER: `history.jsonl`, and `planted.jsonl`, in which one
reply was changed, so that a check of it must find a violation.

How commands are expressed as operations of a map:

    GET, SET, SET NX, SET XX, DEL     get, upsert, insert, update, remove
    HGET, HSET, HSETNX, HDEL          the same, of the key "hash field"; HGETALL: a get of each field
    INCR with the reply n             replace of n-1 by n; for n = 1 an insert of 1

A command without a reply is pending: it may have taken effect once, at any moment from then on, or never. An INCR without a reply
is a replace whose numbers are unknown. They are found so: among the numbers that a counter was seen to have had, those that no
reply explains must be the work of such INCRs. The smallest of them is given to the one that was sent first, and so on; if there
are more such numbers than INCRs, an INCR was applied twice, and the rest has no operation that explains it. Counters of one kind
are only incremented: there the order of numbers is the order in time, so if any assignment is right, this one is. Counters of the
other kind are also SET, to numbers a million apart, which makes each number unique.
"""

import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections import defaultdict

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

CLIENTS = 6
KEYS = 2  # of each kind, in each phase
PHASE = 0.25  # seconds, after which other keys are used: the checker's work grows with the operations on a key
STRIDE = 1_000_000
FIELDS = (b"a", b"b")
# What a gateway answers when it does not know whether a command has taken effect.
UNKNOWN = ("may have taken effect or not",)


class Unanswered(Exception):
    """No reply has come, or one that leaves the effect open."""


class Client:
    """A connection of redis-py that notes every command. A command is sent once: redis-py's own retries are off, because a second
    INCR would be a second increment."""

    def __init__(self, number, ports, file):
        self.number, self.ports, self.file = number, list(ports), file
        self.random = random.Random(number)
        self.redis = None
        self.longest = 0.0
        self.sequence = 0

    def connect(self, until):
        """Connects to a gateway, to the one that it had first. One that is gone is tried again, in turn with the other."""
        while time.monotonic() < until:
            port = self.ports[0]
            self.redis = redis.Redis(port=port, retry=Retry(NoBackoff(), 0), socket_timeout=60)
            try:
                self.redis.ping()
                return True
            except redis.exceptions.ConnectionError:
                if self.random.random() < 0.3:
                    self.ports.reverse()
                time.sleep(0.01)
        return False

    def note(self, op, key, invoked, responded=None, outcome=None, **more):
        line = {"client": self.number, "op": op, "key": key, "invoked": invoked, **more}
        if outcome is not None:
            line.update(responded=responded, outcome=outcome)
        self.file.write(json.dumps(line) + "\n")

    def command(self, *args):
        """The reply with the times before and after; None instead of a reply if none came."""
        invoked = time.monotonic_ns()
        try:
            reply = (self.redis.execute_command(*args),)
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
            reply = None
        except redis.exceptions.ResponseError as error:
            if not any(text in str(error) for text in UNKNOWN):
                raise
            reply = None
        responded = time.monotonic_ns()
        self.longest = max(self.longest, (responded - invoked) / 1e9)
        return reply, invoked, responded

    def run(self, op, key, args, outcome, **more):
        """One command that is one operation. `outcome` maps its reply."""
        reply, invoked, responded = self.command(*args)
        if reply is None:
            self.note(op, key, invoked, **more)
            raise Unanswered
        self.note(op, key, invoked, responded, outcome(reply[0]), **more)

    def step(self, phase):
        kind = self.random.choice(("register", "counter", "mixed", "hash"))
        key = f"{kind}:{phase}:{self.random.randrange(KEYS)}"
        self.sequence += 1
        getattr(self, kind)(key, f"{self.number}-{self.sequence}")

    def get(self, key):
        self.run("get", key, ("GET", key), lambda found: {"value": found and found.decode()})

    def register(self, key, value):
        choice = self.random.randrange(10)
        if choice < 4:
            self.get(key)
        elif choice < 6:
            self.run("upsert", key, ("SET", key, value), lambda ok: "written", value=value)
        elif choice < 7:
            self.run("insert", key, ("SET", key, value, "NX"), lambda ok: "inserted" if ok else "exists", value=value)
        elif choice < 8:
            self.run("update", key, ("SET", key, value, "XX"), lambda ok: "updated" if ok else "absent", value=value)
        else:
            self.run("remove", key, ("DEL", key), lambda removed: "removed" if removed else "absent")

    def incr(self, key):
        reply, invoked, responded = self.command("INCR", key)
        # A line of this program's own, which `finished` turns into one of the format.
        self.note("incr", key, invoked, *((responded, reply[0]) if reply else ()))
        if reply is None:
            raise Unanswered

    def counter(self, key, _value):
        self.incr(key) if self.random.randrange(10) < 6 else self.get(key)

    def mixed(self, key, _value):
        choice = self.random.randrange(20)
        if choice < 2:
            base = str((self.number * STRIDE + self.sequence) * STRIDE)
            self.run("upsert", key, ("SET", key, base), lambda ok: "written", value=base)
        else:
            self.incr(key) if choice < 13 else self.get(key)

    def hash(self, key, value):
        field = self.random.choice(FIELDS)
        name = f"{key} {field.decode()}"
        choice = self.random.randrange(10)
        if choice < 3:
            self.run("get", name, ("HGET", key, field), lambda found: {"value": found and found.decode()})
        elif choice < 5:
            reply, invoked, responded = self.command("HGETALL", key)
            for field in FIELDS if reply else ():
                found = reply[0].get(field)
                outcome = {"value": found and found.decode()}
                self.note("get", f"{key} {field.decode()}", invoked, responded, outcome)
            if reply is None:
                raise Unanswered
        elif choice < 7:
            self.run("upsert", name, ("HSET", key, field, value), lambda new: "inserted" if new else "updated", value=value)
        elif choice < 8:
            self.run("insert", name, ("HSETNX", key, field, value), lambda new: "inserted" if new else "exists", value=value)
        else:
            self.run("remove", name, ("HDEL", key, field), lambda removed: "removed" if removed else "absent")


def client(number, ports, path, start, until, longest):
    with open(path, "w") as file:
        me = Client(number, ports, file)
        connected = me.connect(until)
        while connected and time.monotonic() < until:
            try:
                me.step(int((time.monotonic() - start) / PHASE))
            except Unanswered:
                connected = me.connect(until)
        longest[number] = me.longest


class Gateway:
    def __init__(self, pool, port):
        self.args = [os.environ["FARINDEX"], "gateway", pool, "--listen", f"127.0.0.1:{port}", "--threads", "2"]
        self.args += ["--sweep-pause", "200ms"]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.args, stdout=subprocess.PIPE)
        if not self.process.stdout.readline().startswith(b"gateway at"):
            sys.exit("histories: a gateway does not start")

    def kill(self):
        if self.process.poll() is not None:
            sys.exit(f"histories: a gateway has ended by itself, with code {self.process.returncode}")
        self.process.kill()
        self.process.wait()


def finished(lines):
    """The lines in the format: those of INCR as the module's documentation says. Also says how many INCRs without a reply there
    are, and how many numbers show that one of them took effect."""
    operations, counters = [], defaultdict(lambda: (set(), set(), []))
    for line in lines:
        seen, made, open_ = counters[line["key"]]
        if line["op"] != "incr":
            operations.append(line)
            if line["op"] == "upsert" and line["key"].startswith("mixed"):
                # Also one without a reply: it explains its number.
                made.add(int(line["value"]))
            elif line["op"] == "get" and line["key"].startswith(("counter", "mixed")):
                found = line.get("outcome", {}).get("value")
                seen.update(() if found is None else (int(found),))
        elif "outcome" not in line:
            open_.append(line)
        else:
            number = line["outcome"]
            made.add(number)
            if number > 1:
                seen.add(number - 1)
            operations.append(increment(line, number))
    unanswered = applied = 0
    for seen, made, open_ in counters.values():
        # Every number between the beginning of its million and one that was seen was there.
        had = set()
        for highest in {number // STRIDE: number for number in sorted(seen | made)}.values():
            begin = highest // STRIDE * STRIDE
            had.update(range(begin + (begin == 0), highest + 1))
        unexplained = sorted(had - made)
        unanswered, applied = unanswered + len(open_), applied + len(unexplained)
        for line, number in zip(sorted(open_, key=lambda line: line["invoked"]), unexplained):
            operations.append(increment(line, number))
    return operations, unanswered, applied


def increment(line, number):
    line = dict(line, value=str(number))
    if number == 1:
        line["op"] = "insert"
    else:
        line.update(op="replace", expected=str(number - 1))
    if "outcome" in line:
        line["outcome"] = "inserted" if number == 1 else "replaced"
    return line


def write(path, operations):
    with open(path, "w") as file:
        file.write('{"format":"farindex-history","version":2}\n')
        file.writelines(json.dumps(line) + "\n" for line in operations)


def planted(operations):
    """The same with the reply of one INCR changed to that of another one on the same key: an update that was lost."""
    replies = defaultdict(list)
    for at, line in enumerate(operations):
        if line["op"] == "replace" and "outcome" in line and line["key"].startswith("counter"):
            replies[line["key"]].append(at)
    at, other = max(replies.values(), key=len)[:2]
    changed = dict(operations[at], expected=operations[other]["expected"], value=operations[other]["value"])
    return operations[:at] + [changed] + operations[at + 1 :]


def main():
    pool, folder, kills, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    ports = (int(os.environ.get("FARINDEX_PORT", 16484)), int(os.environ.get("FARINDEX_PORT", 16484)) + 1)
    gateways = [Gateway(pool, port) for port in ports]
    spawn = multiprocessing.get_context("spawn")
    longest = spawn.Array("d", CLIENTS)
    start = time.monotonic() + 1
    until = start + (kills + 1) * seconds
    paths = [os.path.join(folder, f"raw.{number}") for number in range(CLIENTS)]
    clients = [
        spawn.Process(target=client, args=(n, ports[n % 2 :] + ports[: n % 2], paths[n], start, until, longest))
        for n in range(CLIENTS)
    ]
    for process in clients:
        process.start()
    try:
        for kill in range(kills):
            time.sleep(max(0, start + (kill + random.uniform(0.6, 1.2)) * seconds - time.monotonic()))
            gateway = gateways[kill % 2]
            gateway.kill()
            time.sleep(0.2 * seconds)
            gateway.start()
        for process in clients:
            process.join()
        if any(process.exitcode for process in clients):
            sys.exit("histories: a client has failed; what it has met stands above")
        # Everything that was acknowledged is there: the last reads are part of the history.
        names = {line["key"].split(" ")[0] for path in paths for line in map(json.loads, open(path))}
        paths.append(os.path.join(folder, "raw.last"))
        with open(paths[-1], "w") as file:
            last = Client(CLIENTS, ports, file)
            if not last.connect(time.monotonic() + 30):
                sys.exit("histories: no gateway answers at the end")
            for name in sorted(names):
                if not name.startswith("hash"):
                    last.get(name)
                    continue
                for field in FIELDS:
                    last.run("get", f"{name} {field.decode()}", ("HGET", name, field),
                             lambda found: {"value": found and found.decode()})
    finally:
        for process in clients:
            process.kill()
        for gateway in gateways:
            gateway.process.kill()
            gateway.process.wait()
    lines = [json.loads(line) for path in paths for line in open(path)]
    operations, unanswered, applied = finished(lines)
    write(os.path.join(folder, "history.jsonl"), operations)
    write(os.path.join(folder, "planted.jsonl"), planted(operations))
    pending = sum("outcome" not in line for line in lines)
    print(f"{kills} kills; {len(lines)} operations on {len({line['key'] for line in operations})} keys by {CLIENTS} clients of redis-py "
          f"{redis.__version__}; {pending} without a reply, {unanswered} of them INCR, {applied} of which took effect; "
          f"a command took at most {max(longest):.2f} s")


if __name__ == "__main__":
    main()
