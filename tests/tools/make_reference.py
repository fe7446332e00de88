#!/usr/bin/env python3
"""Makes a synthetic model and writes its reference: logits of the last position in float64, for five lengths.

  make_reference.py NAME --tokens-from REFERENCE.json [--models DIR] -- ARCH SIZE [options of synth_gguf.py]

Writes DIR/NAME.gguf and ../fixtures/oracle/NAME.json; the token lists are those of another reference.
"""
import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from reference_forward import Model

TOOLS = Path(__file__).resolve().parent
ORACLE = TOOLS.parent / 'fixtures' / 'oracle'


def rounded(x):
    return float(f'{x:.9g}')


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('name')
    ap.add_argument('--tokens-from', required=True, metavar='FILE', help='a reference of the same vocabulary size')
    ap.add_argument('--models', type=Path, default=Path('.'), metavar='DIR')
    ap.add_argument('arguments', nargs='+', help='ARCH SIZE and options for synth_gguf.py, after --')
    a = ap.parse_args()
    file = f'{a.name}.gguf'
    arch, size, *options = a.arguments
    path = a.models / file
    subprocess.run([sys.executable, TOOLS / 'synth_gguf.py', arch, size, path, *options], check=True)
    model = Model(str(path))
    source = json.loads(Path(a.tokens_from).read_text(encoding='utf-8'))
    vocabulary = int(model.tensors['token_embd.weight'].shape[1])
    sequences = []
    for row in source['sequences']:
        logits = model.forward(row['tokens'])[-1]
        top = np.argsort(-logits, kind='stable')[:5]
        sequences.append(dict(
            len=row['len'], tokens=row['tokens'], top5=[[int(i), rounded(logits[i])] for i in top],
            argmax=dict(f64=int(logits.argmax())), logits=dict(f64=[rounded(x) for x in logits])))
    data = path.read_bytes()
    reference = dict(model=a.name, file=file, generate=' '.join(['synth_gguf.py', arch, size, file, *options]),
                     sha256=hashlib.sha256(data).hexdigest(), bytes=len(data), arch=arch, n_vocab=vocabulary, sequences=sequences)
    (ORACLE / f'{a.name}.json').write_text(json.dumps(reference, separators=(',', ':')), encoding='utf-8')


if __name__ == '__main__':
    main()
