#!/usr/bin/env python3
"""Mutation testing: docs/mutation.md says how and what came out.

    mutate.py build SUBJECT              generate all mutants, leave out what does not compile, build the tests
    mutate.py run SUBJECT [--files A,B] [--mutants N,M] [--again [--stages A,B]] [--seconds N]
                                         run them, file by file; --again: those that were missed, with more tests, or
                                         with these of them however often they were missed
    mutate.py table SUBJECT              counts, and a row for each mutant that was missed
    mutate.py judge SUBJECT [--parts A,B] [--each N] [--modes A,B] [--mutants N,M] [--seconds N]
                                         run a sample of the mutants of each part with cases of `farindex check` alone;
                                         --each: the first N of each sample; --modes: features, plain, or both
    mutate.py verdicts SUBJECT           counts by part, and a row for each mutant of the sample that was missed

SUBJECT is one of SUBJECTS below; `judge` needs one that has parts. Everything is under target/mutate; what was run is
kept there, and not run twice.
"""
import argparse
import collections
import itertools
import json
import math
import os
import pathlib
import random
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

ADVERSARY = ['build', '-p', 'farindex-testkit', '--features', 'marks', '--example', 'adversary']

# A stage: (name, the target that is run as CRATE/TARGET, its arguments, its environment).
CHECK_STAGES = [
    ('unit', 'check/farindex_check', ['-q'], {}),
    ('format', 'check/it', ['-q', 'format'], {'PROPTEST_CASES': '64'}),
    ('brute force', 'check/it', ['-q', 'brute_force'], {'FARINDEX_CHECK_HISTORIES': '1000'}),
    ('explain', 'check/it', ['-q', 'explain'], {}),
    ('rules', 'check/it', ['-q', 'rules', 'recorder'], {}),
]
# What `farindex check` judges alone: the files of each part, and the commands whose cases are run in turn. A file belongs to
# one part. Left out: planted faults, published variants, statistics, texts, models of cost, tests, and what only tools use.
LEFT_OUT = {'faults', 'published', 'tests', 'stall', 'hotspot', 'decoders', 'check', 'hooks', 'sync', 'growth', 'load'}
KINDS = ['shard', 'race', 'sephash', 'linear', 'cuckoo', 'sherman', 'chime', 'dex']
PARTS = {
    'race': (['index/src/hash/race'], ['race']),
    'sephash': (['index/src/hash/sephash'], ['sephash']),
    'extendible': (['index/src/extendible'], ['race', 'sephash']),
    'linear': (['index/src/hash/linear'], ['linear']),
    'cuckoo': (['index/src/hash/cuckoo'], ['cuckoo']),
    'slotted': (['index/src/slotted'], ['linear', 'cuckoo']),
    'sherman': (['index/src/tree/sherman'], ['sherman']),
    'chime': (['index/src/tree/chime', 'index/src/tree/chime/leaf'], ['chime']),
    'dex': (['index/src/tree/dex', 'index/src/tree/dex/wire', 'index/src/tree/path_cache'], ['dex', 'dex,write-back']),
    'tree': (['index/src/tree'], ['sherman', 'chime', 'dex']),
    'coalesce': (['index/src/coalesce'], [f'{kind},coalesce' for kind in KINDS]),
    'shared': (['index/src/root_sync'] + [f'index/src/{name}.rs' for name in (
        'backoff block handle join keyhash maintenance many recovery table_per_node value write').split()], KINDS),
    'pool': (['pool/src/alloc', 'pool/src/client', 'pool/src/session'] + [f'pool/src/{name}.rs' for name in (
        'catalog client epoch intent intent_record lease lock reclaim retire_list session takeover').split()], KINDS),
}
# Mutants of each part that are drawn, cases that one of them is run with at most, and the seed of the draw.
SAMPLE, CASES, DRAW = 48, 3000, 24
# The flag of a case in each mode.
MODES = {'features': '', 'plain': ',plain'}
# So many cases of each mutant are run first, whether they pass it or not: most mutants are detected by them.
FEW = 60


def protocol_files(places):
    """The protocol files of a part: files, and all files that lie in folders."""
    files = []
    for place in (ROOT / 'crates' / place for place in places):
        files += [place] if place.is_file() else sorted(place.glob('*.rs'))
    return [str(file.relative_to(ROOT)) for file in files if file.stem not in LEFT_OUT]


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
        'build': [ADVERSARY,
                  ['test', '-p', 'farindex-index', '-p', 'farindex-index-tests', '--no-run', '--lib', '--test', 'it'],
                  ['test', '-p', 'farindex-pool', '--no-run', '--test', 'it']],
        'commands': ['shard'],
        # Of the cases of `farindex check` those that pass the mutant: so many of them.
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
    'protocols': {
        'files': [file for places, _ in PARTS.values() for file in protocol_files(places)],
        'crate': 'crates/fabric', 'switch': 'farindex_fabric::switch',
        'check': [['-p', 'farindex-testkit', '--features', 'marks']],
        'build': [ADVERSARY],
        'parts': PARTS,
        # As the released program is.
        'profile': {'CARGO_PROFILE_DEV_DEBUG_ASSERTIONS': 'false', 'CARGO_PROFILE_DEV_OVERFLOW_CHECKS': 'false'},
    },
}


class Subject:
    profile, parts = {}, {}

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
    """Writes all mutants into the tree; of a subject with parts only the samples, so that it is built soon, and runs fast."""
    chosen = None
    if subject.parts:
        mutator = generate.Mutator(subject.switch, unviable)
        for name in subject.files:
            mutator.file(name, (ROOT / name).read_bytes())
        chosen = {mutant['id'] for part in subject.parts for mutant in sample(mutator.mutants, part)}
    mutator = generate.Mutator(subject.switch, unviable, chosen)
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


def cargo(subject, *arguments):
    environment = {**os.environ, 'CARGO_TARGET_DIR': str(TARGET), 'RUSTFLAGS': '',
                   'CARGO_PROFILE_DEV_OPT_LEVEL': '2', 'CARGO_PROFILE_TEST_OPT_LEVEL': '2', **subject.profile}
    command = ['cargo', *arguments, '--message-format=json']
    done = subprocess.run(command, cwd=subject.tree, capture_output=True, text=True, env=environment)
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{')]
    return done, messages


def culprits(subject, mutants, messages):
    """The mutants that a compiler's errors speak of: the assignment to the variable that is moved otherwise; those in the
    place that it shows; or else the nearest."""
    bad = set()
    for message in messages:
        if message.get('reason') != 'compiler-message' or message['message']['level'] != 'error':
            continue
        moved = re.search(r'of moved value: `(\w+)`', message['message']['message'])
        for span in message['message']['spans']:
            if not span['is_primary'] or span['file_name'] not in subject.files:
                continue
            assigned = {mutant['id'] for mutant in mutants if moved and mutant['file'] == span['file_name']
                        and mutant['what'] == 'delete statement' and mutant['text'].startswith(f'{moved[1]} = ')}
            if assigned:
                bad |= assigned
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
            done, messages = cargo(subject, 'check', *arguments)
            bad |= culprits(subject, mutants, messages)
            if done.returncode and not bad:
                sys.exit(done.stderr)
        if not bad:
            break
        unviable |= {(mutants[i]['file'], mutants[i]['byte'], mutants[i]['what']) for i in bad}
        subject.save('unviable', sorted(unviable))
    subject.save('mutants', mutants)
    binaries = {}
    for arguments in subject.build:
        done, messages = cargo(subject, *arguments)
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


def all_cases(commands, plain):
    """The cases that these commands have in turn: seeds without and with crashes."""
    names = [command + plain + crashes for command in commands for crashes in ('', ',crashes')]
    return [f'{name}:{seed}' for seed in range(seeds_of(len(commands))) for name in names][:CASES]


def cases(subject, binaries, commands, plain, number):
    """Those of them that pass a mutant."""
    def passes(case):
        name, seed = case.split(':')
        return survey(subject, binaries, commands, name)['passed'].get(number, 0) >> int(seed) & 1

    return list(filter(passes, all_cases(commands, plain)))


def seeds_of(commands):
    """The seeds of each of so many commands, with and without crashes, that make all cases of a mutant."""
    return math.ceil(CASES / 2 / commands)


SURVEYS = {}


def survey(subject, binaries, commands, name):
    """Which seeds of one of these commands, with further flags, pass each mutant, and the processor seconds of one of them."""
    seeds = seeds_of(len(commands))
    # Another part, with more commands, needs fewer seeds of each.
    if name in SURVEYS and SURVEYS[name]['seeds'] >= seeds:
        return SURVEYS[name]
    known = subject.load('survey', {})
    if known.get(name, {}).get('seeds', 0) < seeds:
        how, seconds, said = execute(binaries, ('survey', 'testkit/adversary', ['survey', name, str(seeds)], {}), {}, 3600)
        if how != 'passed':
            sys.exit(f'{name}: a case {how} without any mutant: {said[:3000]}')
        print(name, seeds, 'seeds', round(seconds, 1), 's', flush=True)
        passed = dict(line.split() for line in said.splitlines())
        known[name] = {'seeds': seeds, 'seconds': seconds / seeds, 'steps': passed.pop('steps'), 'passed': passed}
        subject.save('survey', known)
    passed = {number: int(digits, 16) for number, digits in known[name]['passed'].items()}
    SURVEYS[name] = {'seeds': known[name]['seeds'], 'seconds': known[name]['seconds'], 'passed': passed}
    return SURVEYS[name]


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
        drawn = cases(subject, binaries, subject.commands, '', number)[stage[2].start:stage[2].stop]
        stage, passes = (*stage[:2], drawn, stage[3]), bool(drawn)
        usual = sum(survey(subject, binaries, subject.commands, case.split(':')[0])['seconds'] for case in drawn)
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


def sample(mutants, part):
    """A random sample of a part's mutants: of each file its share, in an order that is random again."""
    files, of_files = protocol_files(PARTS[part][0]), collections.defaultdict(list)
    for mutant in mutants:
        if mutant['file'] in files:
            of_files[mutant['file']].append(mutant)
    total, drawn, taken = sum(map(len, of_files.values())), [], 0
    rng = random.Random(f'{DRAW} {part}')
    for _, of_file in sorted(of_files.items()):
        # Rounded so that the shares sum up.
        taken += len(of_file)
        drawn += rng.sample(of_file, min(len(of_file), round(SAMPLE * taken / total) - len(drawn)))
    rng.shuffle(drawn)
    return drawn


def judge(subject, parts, each, modes, only, seconds):
    """Runs the samples of these parts in turn, with plain seeds of `farindex check` and with those that draw features: all
    mutants with the first cases, and then those that these miss with the others, as far as they pass the mutant."""
    binaries, verdicts = subject.load('binaries'), subject.load('verdicts', {})
    mutants = subject.load('mutants')
    samples = {part: sample(mutants, part) for part in parts or PARTS}
    places = [(drawn[place], part) for place in range(each) for part, drawn in samples.items() if place < len(drawn)]
    until = time.monotonic() + seconds
    for first, (mutant, part), mode in itertools.product((True, False), places, modes):
        number, commands, plain = str(mutant['id']), PARTS[part][1], MODES[mode]
        verdict = verdicts.get(f'{number} {mode}')
        if mutant['unviable'] or (only and number not in only) or (verdict and (first or verdict['how'] != 'open')):
            continue
        if time.monotonic() > until:
            break
        found, passing = all_cases(commands, plain)[:FEW], True
        if not first:
            passing = cases(subject, binaries, commands, plain, number)
            found = [case for case in passing if case not in found]
        # Each case has a limit of its own; this one is for all.
        stage = ('judge', 'testkit/adversary', found, {})
        how, took, said = execute(binaries, stage, {'MUTANT': number}, 900)
        took += verdict['seconds'] if verdict else 0
        how = {'passed': 'open' if first else 'missed' if passing else 'not passed', 'failed': 'detected'}.get(how, how)
        verdict = {'how': how, 'seconds': round(took, 2), 'said': said[:400]}
        verdicts[f'{number} {mode}'] = verdict
        subject.save('verdicts', verdicts)
        print(part, number, mode, how, verdict['seconds'], verdict['said'][:90].strip(), flush=True)


def interval(found, of):
    """The range in which a share lies with a certainty of 95 % (Wilson), in percent."""
    if not of:
        return ''
    share, z = found / of, 1.96
    middle, width = share + z * z / (2 * of), z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return ' to '.join(f'{100 * (middle + sign * width) / (1 + z * z / of):.0f}' for sign in (-1, 1))


def verdicts(subject):
    """Prints the counts of each part, with the interval of the share that is detected with features, and the mutants that are
    missed, or of which only the first cases were run."""
    mutants, known = subject.load('mutants'), subject.load('verdicts', {})
    rows, missed, sums = [], [], collections.Counter()
    for part, (places, commands) in PARTS.items():
        files, count = protocol_files(places), collections.Counter()
        count['all'] = sum(mutant['file'] in files for mutant in mutants)
        for mutant in sample(mutants, part):
            count['sampled'] += 1
            count['unviable'] += mutant['unviable']
            results = {mode: known.get(f"{mutant['id']} {mode}") for mode in MODES}
            for mode, result in results.items():
                if result:
                    count[f'{mode} run'] += 1
                    count['seconds'] += result['seconds']
                    count[mode] += result['how'] in ('detected', 'timeout')
            if how := results['features'] and results['features']['how']:
                count[how] += how in ('missed', 'not passed', 'open')
                if how not in ('detected', 'timeout'):
                    missed.append((mutant, how))
            else:
                count['not run'] += not mutant['unviable']
        sums += count
        rows.append((part, count))
    print('| Part | Mutants | Sampled | Unviable | Run | Detected | Missed | Not passed | Open | Not run | Share, % | Run plain |'
          ' Detected plain | Seconds |')
    print('|---' * 14 + '|')
    columns = ('all', 'sampled', 'unviable', 'features run', 'features', 'missed', 'not passed', 'open', 'not run')
    for part, count in [*rows, ('*all*', sums)]:
        cells = [str(count[column]) for column in columns]
        share = interval(count['features'], count['features run'])
        plain = [str(count[column]) for column in ('plain run', 'plain')]
        print('|', ' | '.join([part, *cells, share, *plain, f"{count['seconds']:.0f}"]), '|')
    print('\n| Place | Code | Mutation | | Number |\n|---|---|---|---|---|')
    for mutant, how in missed:
        where = f"{mutant['file'].removeprefix('crates/').replace('/src', '')}:{mutant['line']}"
        print(f"| {where} | `{cell(mutant['text'][:80])}` | {cell(mutant['what'])} | {how} | {mutant['id']} |")


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
    parser.add_argument('command', choices=['build', 'run', 'table', 'judge', 'verdicts'])
    parser.add_argument('subject', choices=sorted(SUBJECTS))
    parser.add_argument('--files', type=lambda names: names.split(','), default=[], help='only these, without .rs')
    parser.add_argument('--parts', type=lambda names: names.split(','), default=[], help='judge only these')
    parser.add_argument('--each', type=int, default=SAMPLE, help='judge only so many of each part')
    parser.add_argument('--modes', type=lambda names: names.split(','), default=list(MODES), help='judge only in these')
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
    elif options.command == 'judge':
        judge(subject, options.parts, options.each, options.modes, options.mutants, options.seconds)
    elif options.command == 'verdicts':
        verdicts(subject)
    else:
        table(subject)


if __name__ == '__main__':
    main()
