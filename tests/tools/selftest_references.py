#!/usr/bin/env python3
"""Writes assets/selftest-references.json: logits in float64 of the tiny models that the program makes up for its self-test.

  mkdir -p target/selftest && SEMIF_SELFTEST_MODELS=$PWD/target/selftest cargo test --lib references_belong
  .venv/bin/python tests/tools/selftest_references.py target/selftest
"""
import hashlib
import json
import random
import sys
from pathlib import Path

from reference_forward import Model

ROOT = Path(__file__).resolve().parents[2]
LABELS = list(range(32, 48))


def main():
    folder = Path(sys.argv[1])
    out = []
    for name in ('qwen3-tiny', 'llama-tiny', 'qwen35-tiny'):
        path = folder / f'{name}.gguf'
        model, numbers = Model(str(path)), random.Random(name)
        sequences = []
        for length in (9, 75):
            tokens = [numbers.randrange(512) for _ in range(length)]
            logits = model.forward(tokens)[-1]
            sequences.append({'tokens': tokens, 'logits': [float(f'{logits[i]:.8g}') for i in LABELS]})
        out.append({'name': name, 'sha256': hashlib.sha256(path.read_bytes()).hexdigest(), 'labels': LABELS, 'sequences': sequences})
    lines = ',\n'.join(json.dumps(reference, separators=(',', ':')) for reference in out)
    (ROOT / 'assets' / 'selftest-references.json').write_text(f'[\n{lines}\n]\n', encoding='utf-8')


if __name__ == '__main__':
    main()
