#!/usr/bin/env python3
"""Mutation testing of SHARD and of the checker: docs/mutation.md says how and what came out.

    mutate.py build SUBJECT              generate all mutants, leave out what does not compile, build the tests
    mutate.py run SUBJECT [--files A,B] [--mutants N,M] [--again [--stages A,B]] [--seconds N]
                                         run them, file by file; --again: those that were missed, with more tests, or
                                         with these of them however often they were missed
    mutate.py table SUBJECT              counts, and a row for each mutant that was missed

SUBJECT is `shard` or `check`. Everything is under target/mutate; what was run is kept there, and not run twice.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import time

import generate

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = pathlib.Path(os.environ.get('MUTATE_WORK', ROOT / 'target' / 'mutate'))
TARGET = pathlib.Path(os.environ.get('MUTATE_TARGET', WORK / 'target'))
SHARD = 'crates/index/src/hash/shard/'

# A stage: (name, the target that is run as CRATE/TARGET, its arguments, its environment).
CHECK_STAGES = [
    ('unit', 'check/farindex_check', ['-q'], {}),
    ('format', 'check/it', ['-q', 'format'], {'PROPTEST_CASES': '64'}),
    ('brute force', 'check/it', ['-q', 'brute_force'], {'FARINDEX_CHECK_HISTORIES': '1000'}),
    ('explain', 'check/it', ['-q', 'explain'], {}),
    ('rules', 'check/it', ['-q', 'rules', 'recorder'], {}),
]
SUBJECTS = {
    'check': {
        'files': ['crates/check/src/' + name + '.rs' for name in (
            'check history model key_op map order partition plan scan search tighten zones recorder format text explain').split()],
        'crate': 'crates/check', 'switch': 'crate::switch',
        'check': [['-p', 'farindex-check', '--all-targets']],
        'build': [['test', '-p', 'farindex-check', '--no-run', '--lib', '--tests']],
        'stages': CHECK_STAGES,
        'again': [('brute force, 8000 histories', 'check/it', ['-q', 'brute_force'], {'FARINDEX_CHECK_HISTORIES': '8000'}),
                  ('format, 1000 cases', 'check/it', ['-q', 'format'], {'PROPTEST_CASES': '1000'}),
                  ('rules', 'check/it', ['-q', 'rules', 'recorder'], {})],
    },
    'shard': {
        'files': [SHARD + name + '.rs' for name in 'recovery unfreeze mod geometry table walk dump split insert lookup many bucket slot level3'.split()] + [
            'crates/index/src/backoff.rs', 'crates/index/src/handle.rs', 'crates/pool/src/takeover.rs'],
        'crate': 'crates/fabric', 'switch': 'farindex_fabric::switch',
        'check': [['-p', 'farindex-index', '-p', 'farindex-pool']],
        'build': [['build', '-p', 'farindex-testkit', '--features', 'marks', '--example', 'adversary'],
                  ['test', '-p', 'farindex-index', '--no-run', '--lib', '--test', 'it'],
                  ['test', '-p', 'farindex-pool', '--no-run', '--test', 'it']],
        # Of the adversary's cases those that pass the mutant: so many of them.
        'stages': [('unit tests', 'index/farindex_index', ['-q', 'shard'], {}),
                   ('budgets', 'index/it', ['-q', 'budgets::'], {}),
                   ('80 cases', 'testkit/adversary', range(80), {}),
                   ('takeover', 'pool/it', ['-q', 'takeover::'], {})],
        'again': [('scenarios', 'index/it', ['-q', 'crash_recovery::scenarios'], {}),
                  ('audit and errors', 'index/it', ['-q', 'shard::audit', 'model::errors'], {}),
                  ('model', 'index/it', ['-q', 'shard::prototype_faults', 'model::'], {}),
                  ('growth', 'index/it', ['-q', 'shard::growth'], {}),
                  ('damage', 'index/it', ['-q', 'fault_detection'], {'FARINDEX_FAULT': 'Fault::NoChecksum'}),
                  ('crashes in SHARD', 'index/it', ['-q', 'operation_of_shard'],
                   {'FARINDEX_EVERY': '29'}),
                  ('200 more cases', 'testkit/adversary', range(80, 280), {}),
                  ('interleavings', 'index/it', ['-q', 'crash_recovery::interleavings'], {}),
                  ('crashes in the pool', 'pool/it', ['-q', 'crash_recovery::'], {})],
    },
}


class Subject:
    def __init__(self, name):
        self.__dict__.update(SUBJECTS[name])
        self.name, self.dir, self.tree = name, WORK / name, WORK / name / 'tree'
        self.dir.mkdir(parents=True, exist_ok=True)

    def load(self, what, default=None):
        path = self.dir / f'{what}.json'
        return json.loads(path.read_text()) if path.exists() else default

    def save(self, what, value):
        path = self.dir / f'{what}.json'
        path.with_suffix('.new').write_text(json.dumps(value, indent=0))
        path.with_suffix('.new').replace(path)


def copy_tree(tree):
    """A copy of what git knows of; only what differs is written, so that nothing else is built again."""
    names = subprocess.run(['git', 'ls-files'], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split('\n')
    for name in filter(None, names):
        source, copy = ROOT / name, tree / name
        if source.is_file() and not (copy.exists() and copy.read_bytes() == source.read_bytes()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)


def write(subject, unviable):
    mutator = generate.Mutator(subject.switch, unviable)
    for name in subject.files:
        (subject.tree / name).write_text(mutator.file(name, (ROOT / name).read_bytes()))
    root = subject.tree / subject.crate / 'src'
    shutil.copyfile(HERE / 'switch.rs', root / 'switch.rs')
    text = (ROOT / subject.crate / 'src/lib.rs').read_text()
    (root / 'lib.rs').write_text(text + '\npub mod switch;\n')
    examples = subject.tree / 'crates/testkit/examples'
    examples.mkdir(exist_ok=True)
    shutil.copyfile(HERE / 'adversary.rs', examples / 'adversary.rs')
    return mutator.mutants


def cargo(tree, *arguments):
    environment = {**os.environ, 'CARGO_TARGET_DIR': str(TARGET), 'RUSTFLAGS': '',
                   'CARGO_PROFILE_DEV_OPT_LEVEL': '2', 'CARGO_PROFILE_TEST_OPT_LEVEL': '2'}
    command = ['cargo', *arguments, '--message-format=json']
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, env=environment)
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{')]
    return done, messages


def culprits(subject, messages):
    """The mutants that a compiler's errors speak of: those in the place it shows, or else the nearest."""
    bad = set()
    for message in messages:
        if message.get('reason') != 'compiler-message' or message['message']['level'] != 'error':
            continue
        for span in message['message']['spans']:
            if not span['is_primary'] or span['file_name'] not in subject.files:
                continue
            text = (subject.tree / span['file_name']).read_bytes()
            switches = [(found.start(), int(found.group(1))) for found in re.finditer(rb'::(?:on|not)\((\d+)', text)]
            start, end = span['byte_start'], span['byte_end']
            inside = [number for at, number in switches if start <= at < end]
            if not inside or len(inside) > 6:
                at = start if inside else (start + end) // 2
                inside = [number for _, number in sorted(switches, key=lambda switch: abs(switch[0] - at))[:2]]
            bad.update(inside)
    return bad


def build(subject):
    copy_tree(subject.tree)
    unviable = {tuple(key) for key in subject.load('unviable', [])}
    while True:
        mutants = write(subject, unviable)
        bad = set()
        for arguments in subject.check:
            done, messages = cargo(subject.tree, 'check', *arguments)
            bad |= culprits(subject, messages)
            if done.returncode and not bad:
                sys.exit(done.stderr)
        if not bad:
            break
        unviable |= {(mutants[i]['file'], mutants[i]['byte'], mutants[i]['what']) for i in bad}
        subject.save('unviable', sorted(unviable))
    subject.save('mutants', mutants)
    binaries = {}
    for arguments in subject.build:
        done, messages = cargo(subject.tree, *arguments)
        if done.returncode:
            sys.exit(done.stderr)
        for message in messages:
            if message.get('reason') == 'compiler-artifact' and message.get('executable'):
                crate = re.search(r'(crates/\w+)', message['manifest_path'].split(str(subject.tree))[-1]).group(1)
                binaries[f"{crate.split('/')[1]}/{message['target']['name']}"] = [message['executable'], str(subject.tree / crate)]
    subject.save('binaries', binaries)
    print(f'{len(mutants)} mutants, {len(unviable)} of them unviable')


def execute(binaries, stage, environment, cpu):
    """How a stage ended: 'passed', 'failed', or 'timeout'; the processor seconds it took; and what it printed."""
    _, target, arguments, own = stage
    binary, crate = binaries[target]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        # Processor time is what limits: the machine may have other work to do.
        done = subprocess.run(
            [binary, *arguments], cwd=crate, capture_output=True, timeout=5 * cpu + 60,
            env={**os.environ, 'RUST_BACKTRACE': '0', 'RAYON_NUM_THREADS': '1', **own, **environment},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu)))
        how = 'passed' if done.returncode == 0 else 'timeout' if done.returncode in (-9, -24) else 'failed'
        said = done.stdout.decode(errors='replace')
    except subprocess.TimeoutExpired:
        how, said = 'timeout', ''
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return how, after.ru_utime - before.ru_utime, said


def survey(subject, binaries):
    """The adversary's cases that pass each mutant, and the processor seconds of one of them."""
    known = subject.load('survey')
    if not known:
        how, seconds, said = execute(binaries, ('survey', 'testkit/adversary', ['survey'], {}), {}, 3600)
        if how != 'passed':
            sys.exit(f'a case of the adversary {how} without any mutant')
        cases = {line.split()[0]: line.split()[1:] for line in said.splitlines()}
        known = {'seconds': seconds / 5520, 'cases': cases}
        subject.save('survey', known)
    return known


def reached(subject, binaries, stage):
    """The mutants that a stage passes, and the processor seconds it takes without one."""
    known = subject.load('reached', {})
    if stage[0] not in known:
        path = subject.dir / 'passed.txt'
        path.unlink(missing_ok=True)
        how, seconds, _ = execute(binaries, stage, {'MUTANTS_REACHED': str(path)}, 600)
        if how != 'passed':
            sys.exit(f'{stage[0]} {how} without any mutant')
        passed = sorted(map(int, path.read_text().split())) if path.exists() else []
        known[stage[0]] = {'seconds': seconds, 'mutants': passed}
        subject.save('reached', known)
        print(stage[0], round(seconds, 1), 's', len(passed), 'mutants')
    return known[stage[0]]


def attempt(subject, binaries, stage, number):
    """How a stage ends with a mutant on, or None if it does not pass it."""
    if isinstance(stage[2], range):
        known = survey(subject, binaries)
        cases = known['cases'].get(number, [])[stage[2].start:stage[2].stop]
        stage, usual = (*stage[:2], cases, stage[3]), known['seconds'] * len(cases)
        passes = bool(cases)
    else:
        known = reached(subject, binaries, stage)
        usual, passes = known['seconds'], int(number) in known['mutants']
    return execute(binaries, stage, {'MUTANT': number}, int(4 * usual) + 3)[0] if passes else None


def run(subject, files, only, again, names, seconds):
    binaries, results = subject.load('binaries'), subject.load('results', {})
    stages = subject.again if again else subject.stages
    stages = [stage for stage in stages if not names or stage[0] in names]
    until = time.monotonic() + seconds
    for mutant in subject.load('mutants'):
        number, old = str(mutant['id']), results.get(str(mutant['id']))
        wanted = not mutant['unviable'] and (not files or pathlib.Path(mutant['file']).stem in files) and (
            not only or number in only)
        due = old is None if not again else old is not None and old['how'] == 'missed' and (
            names or not old.get('again'))
        if not wanted or not due:
            continue
        if time.monotonic() > until:
            break
        how, by, seen = 'missed', '', bool(old and old['reached'])
        for stage in stages:
            ended = attempt(subject, binaries, stage, number)
            seen = seen or ended is not None
            if ended in ('failed', 'timeout'):
                how, by = ('timeout' if ended == 'timeout' else 'caught'), stage[0]
                break
        tried = sorted({*(old or {}).get('tried', []), *(stage[0] for stage in stages)})
        results[number] = {'how': how, 'by': by, 'again': again, 'reached': seen, 'tried': tried}
        subject.save('results', results)
    print(len(results), dict(collections.Counter(result['how'] for result in results.values())))


def cell(text):
    return text.replace('|', '\\|')


def table(subject):
    mutants, results = subject.load('mutants'), subject.load('results', {})
    counts = {}
    for mutant in mutants:
        count = counts.setdefault(mutant['file'], collections.Counter())
        result = results.get(str(mutant['id']))
        count['all'] += 1
        count['unviable' if mutant['unviable'] else result['how'] if result else 'not run'] += 1
    columns = ['all', 'unviable', 'caught', 'timeout', 'missed', 'not run']
    print('| File | Mutants | Unviable | Caught | Timed out | Missed | Not run |\n|---|---|---|---|---|---|---|')
    for name, count in counts.items():
        print(f'| {pathlib.Path(name).name} |', ' | '.join(str(count[column]) for column in columns), '|')
    print('| *all* |', ' | '.join(str(sum(count[column] for count in counts.values())) for column in columns), '|\n')
    print('| File | Code | Mutation | |\n|---|---|---|---|')
    for mutant in mutants:
        result = results.get(str(mutant['id']))
        if result and result['how'] == 'missed':
            note = ('' if result['again'] else 'first pass only') if result['reached'] else 'not reached'
            where = f"{pathlib.Path(mutant['file']).name}:{mutant['line']}"
            print(f"| {where} | `{cell(mutant['text'][:80])}` | {cell(mutant['what'])} | {note} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('command', choices=['build', 'run', 'table'])
    parser.add_argument('subject', choices=sorted(SUBJECTS))
    parser.add_argument('--files', type=lambda names: names.split(','), default=[], help='only these, without .rs')
    parser.add_argument('--mutants', type=lambda names: names.split(','), default=[], help='only these, by their numbers')
    parser.add_argument('--again', action='store_true', help='those that were missed, with more tests')
    parser.add_argument('--stages', type=lambda names: names.split(','), default=[], help='with --again: only these')
    parser.add_argument('--seconds', type=float, default=float('inf'), help='begin no mutant after so long')
    options = parser.parse_args()
    subject = Subject(options.subject)
    if options.command == 'build':
        build(subject)
    elif options.command == 'run':
        run(subject, options.files, options.mutants, options.again, options.stages, options.seconds)
    else:
        table(subject)


if __name__ == '__main__':
    main()
